"""Make one table: CSV, LaTeX and HTML from the evaluated runs of a scale, or from its settings, and print it."""

import argparse

from flexround.jobs import command


def parser() -> argparse.ArgumentParser:
    """Return the command line of this job."""
    return command.parser(__doc__)


if __name__ == "__main__":
    command.main("flexround.stages.tabulate", parser())
