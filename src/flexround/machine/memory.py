"""Control whether glibc keeps or returns freed memory."""

import ctypes
import os

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # parameters of mallopt(3)
KEPT_BYTES, MAPPED_BYTES = 2**30, 2**28


def keep_freed_memory() -> None:
    """Make glibc keep freed blocks below 256 MB for later requests instead of returning them to the system.

    Each iteration frees and allocates activations of equal sizes; page faults in between can take half of its time.
    Larger blocks (most caches) still return to the system. Kept memory can grow to several times the used memory
    until ``return_freed_memory``: glibc can't place an aligned block in a freed block of equal size. Other C libraries
    are not changed.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, MAPPED_BYTES)
        mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)


def return_freed_memory() -> None:
    """Make glibc return kept memory to the system, before work with other shapes begins."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None
    if trim is not None:
        trim(0)
