"""Evaluate one run: metrics, counts and standard errors as JSON, per-example scores beside it."""

import argparse

from flexround.jobs import command


def parser() -> argparse.ArgumentParser:
    """Return the command line of this job."""
    return command.parser(__doc__)


if __name__ == "__main__":
    command.main("flexround.stages.evaluate", parser())
