"""What holds for the test process and those that it starts."""

import os
import signal

# One thread, set before torch is imported: spinning threads on busy cores cost a factor of ten.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# A shell ignores SIGINT in what it puts into the background, and so would the jobs that tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items):
    """Run tests marked ``last`` after all others: autograd keeps threads of theirs, with which no test can fork."""
    items.sort(key=lambda item: item.get_closest_marker("last") is not None)
