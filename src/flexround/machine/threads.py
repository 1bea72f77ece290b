"""Limit a job's libraries to its number of CPU threads."""

import contextlib
import os
import sys
from collections.abc import Iterator

POOLS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")


@contextlib.contextmanager
def held(threads: int) -> Iterator[None]:
    """Limit libraries imported inside to ``threads``; two jobs that spin on the same cores are ten times slower.

    Libraries read the environment when they are loaded; libraries that the worker has already loaded are set directly.
    """
    loaded = "numpy" in sys.modules
    os.environ.update(dict.fromkeys(POOLS, str(threads)))
    yield
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(threads)
    if loaded and threads > 1:
        import threadpoolctl  # only a forked process needs it

        threadpoolctl.threadpool_limits(threads)
