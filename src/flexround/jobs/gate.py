"""Pass or stop a full-precision network: nothing is quantized before it is what it should be."""

import argparse

from flexround.jobs import command


def parser() -> argparse.ArgumentParser:
    """Return the command line of this job."""
    return command.parser(__doc__)


if __name__ == "__main__":
    command.main("flexround.stages.gate", parser())
