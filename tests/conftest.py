"""One thread per test process, set before torch is imported: spinning threads on busy cores cost a factor of ten."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
