"""Judge the paper's claims by the evaluated runs of a scale, and list the paper's errata."""

import argparse

from flexround.jobs import command


def parser() -> argparse.ArgumentParser:
    """Return the command line of this job."""
    return command.parser(__doc__)


if __name__ == "__main__":
    command.main("flexround.stages.claims", parser())
