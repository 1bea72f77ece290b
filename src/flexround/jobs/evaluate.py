"""Evaluate one run: metrics, counts and standard errors as JSON, per-example scores beside it."""

import functools

from flexround.jobs import command

parser = functools.partial(command.resumable, __doc__)

if __name__ == "__main__":
    command.main("flexround.stages.evaluate", parser())
