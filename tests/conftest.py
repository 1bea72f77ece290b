"""What holds for the test process and those that it starts."""

import os
import signal
from pathlib import Path

import pytest

# One thread, set before torch is imported: spinning threads on busy cores cost a factor of ten.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# A shell ignores SIGINT in what it puts into the background, and so would the jobs that tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)


MINE = pytest.StashKey[dict[Path, bool]]()


def pytest_addoption(parser):
    """Let several processes share the tests, see halves.py."""
    parser.addoption("--claims", type=Path, help="directory in which processes claim files of tests")
    parser.addoption("--backwards", action="store_true", help="begin with the last file")


def pytest_collection_modifyitems(config, items):
    """Run tests marked ``last`` after all others: autograd keeps threads of theirs, with which no test can fork."""
    if config.getoption("backwards"):
        files = list(dict.fromkeys(item.path for item in items))
        items.sort(key=lambda item: -files.index(item.path))
    items.sort(key=lambda item: item.get_closest_marker("last") is not None)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item):
    """Leave out a test whose file another process has claimed."""
    mine = item.config.stash.setdefault(MINE, {})
    if item.path not in mine:
        mine[item.path] = _claimed(item.config.getoption("claims"), item.path.name)
    return None if mine[item.path] else True


def _claimed(claims, name):
    """Whether a file is this process's: nobody else made the file of its name in ``claims``."""
    try:
        return claims is None or claims.joinpath(name).open("x").close() is None
    except FileExistsError:
        return False
