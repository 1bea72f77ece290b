"""Memory that is too small ends in one message; what is free of the host's memory."""

import contextlib
import os
import re
import resource
from collections.abc import Iterator
from pathlib import Path

from flexround.errors import InputError

GROUPS = Path("/sys/fs/cgroup")
# Of PyTorch (GPU, CPU), CUDA's libraries, NumPy and the system, in this order.
TOO_LITTLE = re.compile(
    r"CUDA out of memory|CUDA error: out of memory|DefaultCPUAllocator: (can't allocate|not enough) memory"
    r"|_STATUS_ALLOC_FAILED|Unable to allocate|Cannot allocate memory"
)


@contextlib.contextmanager
def enough(what: str, *ways: str) -> Iterator[None]:
    """Say in one message that the memory was too small.

    Args:
        what: is being done; the message begins with it.
        ways: settings that lower what is asked for, the best one first.

    Raises:
        InputError: an allocation failed, with the words of PyTorch, NumPy or the system.
    """
    try:
        yield
    except (MemoryError, OSError, RuntimeError) as error:
        text = str(error)
        if not isinstance(error, MemoryError) and not TOO_LITTLE.search(text):
            raise
        reason = text.partition("\n")[0] or type(error).__name__
        gpu = "CUDA" in text or "CUBLAS" in text or "CUDNN" in text
        limit = "jobs_per_gpu" if gpu else "--cores, --resources mem_mb="
        others = f"fewer jobs at once ({limit}), or a larger {'GPU' if gpu else 'machine'}"
        raise InputError(
            f"{what}: the {'GPU' if gpu else 'host'}'s memory is too small: {reason}; "
            f"try {', '.join((*ways, others))}; what is finished is kept: run the same command again"
        ) from error


def free_bytes() -> int:
    """Return the bytes of the host's memory that this process can still have: the least that any limit leaves."""
    available = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text())
    rooms = [int(available.group(1)) * 1024] if available else []
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit != resource.RLIM_INFINITY:
        rooms.append(limit - int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE"))
    group = GROUPS / Path("/proc/self/cgroup").read_text().strip().rpartition("::/")[2]  # version 2, as clusters have
    for directory in (group, *group.parents):
        with contextlib.suppress(OSError, ValueError):  # no limit ("max"), or not a group
            most = int((directory / "memory.max").read_text())
            rooms.append(most - int((directory / "memory.current").read_text()))
    return max(0, min(rooms, default=0))
