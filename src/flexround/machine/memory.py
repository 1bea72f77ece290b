"""How a process uses the CPU's memory."""

import ctypes
import os

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of mallopt(3)
KEPT_BYTES, MAPPED_BYTES = 2**30, 2**28


def keep_freed_memory() -> None:
    """Have glibc keep freed blocks below 256 MB for the next request instead of returning them to the system.

    An iteration frees and takes the same activations again; the page faults in between can cost half of its time.
    Larger blocks (most caches) still go back. What is kept can grow to several times what is in use, since glibc finds
    no place for an aligned block in a freed one of its size, until ``return_freed_memory``. Other C libraries are left
    as they are.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, MAPPED_BYTES)
        mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)


def return_freed_memory() -> None:
    """Have glibc return to the system what it keeps, before work of another shape begins."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None
    if trim is not None:
        trim(0)
