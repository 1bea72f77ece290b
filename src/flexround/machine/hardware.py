"""What the machine could not give: memory that is too small and GPUs that are gone end in one message each."""

import contextlib
import os
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from flexround.errors import InputError

GB = 1e9
GROUPS = Path("/sys/fs/cgroup")
SMI_SECONDS = 20  # for nvidia-smi to answer
UNITS = {"bytes": 1, **{f"{prefix}iB": 2 ** (10 * power) for power, prefix in enumerate("KMGTPE", 1)}}
# Of PyTorch (GPU, CPU), CUDA's libraries, NumPy and the system, in this order.
TOO_LITTLE = re.compile(
    r"CUDA out of memory|CUDA error: out of memory|DefaultCPUAllocator: (can't allocate|not enough) memory"
    r"|_STATUS_ALLOC_FAILED|Unable to allocate|Cannot allocate memory"
)
ASKED = re.compile(r"(?:[Tt]ried to allocate|Unable to allocate) ([\d.]+) (bytes|[KMGTPE]iB)")
LOST = re.compile(
    r"(?:CUDA|CUBLAS|CUDNN|NCCL) error: .*(?:unspecified launch failure|uncorrectable|device\(s\) is/are busy|lost"
    r"|no CUDA-capable device|unknown error|fallen off)"
)


@contextlib.contextmanager
def enough(what: str, *ways: str) -> Iterator[None]:
    """Say in one message that the memory was too small, or that the GPU is gone.

    Args:
        what: is being done; the message begins with it.
        ways: settings that lower what is asked for, the best one first.

    Raises:
        InputError: an allocation failed, with the bytes asked for and free, or the GPU was lost.
    """
    try:
        yield
    except (MemoryError, OSError, RuntimeError) as error:
        text = str(error)
        if LOST.search(text):
            reason = text.strip().splitlines()[0]
            raise InputError(
                f"{what}: the GPU is gone ({reason}); nvidia-smi: {smi()}; what is finished is kept: run the same "
                "command again when the GPU is back, or on another one (CUDA_VISIBLE_DEVICES)"
            ) from error
        if not isinstance(error, MemoryError) and not TOO_LITTLE.search(text):
            raise
        gpu = "CUDA" in text or "CUBLAS" in text or "CUDNN" in text
        here = f"{_free_on_gpu() if gpu else _free_on_host()} free"
        limit = "jobs_per_gpu" if gpu else "--cores, --resources mem_mb="
        others = f"fewer jobs at once ({limit}), or a larger {'GPU' if gpu else 'machine'}"
        raise InputError(
            f"{what}: the {'GPU' if gpu else 'host'}'s memory is too small: {_asked(text)} asked for, {here}; "
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


def smi() -> str:
    """Return what nvidia-smi says of GPUs and driver, in one line."""
    if not (program := shutil.which("nvidia-smi")):
        return "not installed, so there is no driver, or not on the PATH"
    command = [program, "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=SMI_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"no answer ({error})"
    return "; ".join((found.stdout + found.stderr).split("\n")).strip("; ") or "no GPU"


def _asked(text: str) -> str:
    """Return the bytes that a failed allocation asked for, if the message says so."""
    if not (found := ASKED.search(text)):
        return "more"
    return f"{float(found.group(1)) * UNITS[found.group(2)] / GB:.3g} GB"


def _free_on_host() -> str:
    """Return the room on the host in words; nothing here may fail while memory is short."""
    try:
        return f"{free_bytes() / GB:.3g} GB"
    except (OSError, ValueError):  # no /proc: not Linux
        return "an unknown part is"


def _free_on_gpu() -> str:
    """Return the room on the GPU in words, and what this process holds there."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return "an unknown part is"
    free, _ = torch.cuda.mem_get_info()
    return f"{torch.cuda.memory_reserved() / GB:.3g} GB held here and {free / GB:.3g} GB"
