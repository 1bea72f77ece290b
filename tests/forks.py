"""Work in forked processes, which need not import torch again and whose changes to this process's state are lost."""

import itertools
import multiprocessing
import os
import signal
import time
import warnings

CONTEXT = multiprocessing.get_context("fork")


class Fork:
    """A forked process that calls ``action(pipe)``; ``pipe`` is the other end of ``self.pipe``."""

    def __init__(self, action):
        self.pipe, theirs = CONTEXT.Pipe()
        self.process = CONTEXT.Process(target=action, args=(theirs,), daemon=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of Python 3.12: there are threads, of tqdm and others
            self.process.start()
        theirs.close()

    def received(self, seconds=60):
        """Return what the process sends next, None if it sends nothing in that time."""
        return self.pipe.recv() if self.pipe.poll(seconds) else None

    def ended(self, seconds=60):
        """Wait for the end; return the exit code."""
        self.process.join(seconds)
        return self.process.exitcode


def results(*actions, seconds=120):
    """Return what each of ``actions`` returns, in processes that work at the same time, for ``seconds`` at most."""
    forks = [Fork(lambda pipe, action=action: pipe.send(action())) for action in actions]
    found = [fork.received(seconds) for fork in forks]
    assert [fork.ended() for fork in forks] == [0] * len(forks)
    return found


def until(condition, seconds=60):
    """Wait until ``condition()`` is true; return its value."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)
    return value


def killed_at(after, *places):
    """Have this process killed at call number ``after`` of the functions at ``places``, each an owner and a name.

    Return the counter of the calls.
    """
    calls = itertools.count(1)

    def counted(function):
        def wrapper(*arguments, **options):
            if next(calls) == after:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments, **options)

        return wrapper

    for owner, name in places:
        setattr(owner, name, counted(getattr(owner, name)))
    return calls
