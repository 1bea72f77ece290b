"""Fetch one pinned source, the only job that uses the network; what was put there by hand is verified alike."""

import argparse

from flexround.jobs import command


def parser() -> argparse.ArgumentParser:
    """Return the command line of this job."""
    return command.parser(__doc__)


if __name__ == "__main__":
    command.main("flexround.stages.fetch", parser())
