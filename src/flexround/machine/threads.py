"""Hold the libraries that a job imports to its CPU threads."""

import contextlib
import os
import sys
from collections.abc import Iterator

POOLS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")


@contextlib.contextmanager
def held(threads: int) -> Iterator[None]:
    """Hold what is imported inside to ``threads``; two jobs that spin on the same cores are ten times slower than one.

    A library reads the environment when it is loaded; a library that the worker has loaded before is told.
    """
    loaded = "numpy" in sys.modules
    os.environ.update(dict.fromkeys(POOLS, str(threads)))
    yield
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(threads)
    if loaded and threads > 1:
        import threadpoolctl  # only here: a process that was not forked does not need it

        threadpoolctl.threadpool_limits(threads)
