"""Report failed allocations in one message; measure the host's free memory."""

import contextlib
import os
import re
import resource
from collections.abc import Iterator
from pathlib import Path

from flexround.errors import InputError

GROUPS = Path("/sys/fs/cgroup")
# Messages of PyTorch (GPU, CPU), CUDA's libraries, NumPy and the system, in this order.
TOO_LITTLE = re.compile(
    r"CUDA out of memory|CUDA error: out of memory|DefaultCPUAllocator: (can't allocate|not enough) memory"
    r"|_STATUS_ALLOC_FAILED|Unable to allocate|Cannot allocate memory"
)


@contextlib.contextmanager
def enough(what: str, *ways: str) -> Iterator[None]:
    """Turn a failed allocation into one message.

    Args:
        what: the work that runs inside; the message begins with it.
        ways: settings that need less memory, the best setting first.

    Raises:
        InputError: an allocation failed; the message quotes PyTorch, NumPy or the system.
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
    """Return the bytes of host memory that this process can still allocate, within all limits."""
    available = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text())
    rooms = [int(available.group(1)) * 1024] if available else []
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit != resource.RLIM_INFINITY:
        rooms.append(limit - int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE"))
    group = GROUPS / Path("/proc/self/cgroup").read_text().strip().rpartition("::/")[2]  # version 2, as on clusters
    for directory in (group, *group.parents):
        with contextlib.suppress(OSError, ValueError):  # no limit ("max"), or no group
            most = int((directory / "memory.max").read_text())
            rooms.append(most - int((directory / "memory.current").read_text()))
    return max(0, min(rooms, default=0))
