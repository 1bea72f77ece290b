"""Sum up the tables of a scale in one small JSON: what dvc metrics show and dvc metrics diff read."""

import argparse

from flexround.jobs import command


def parser() -> argparse.ArgumentParser:
    """Return the command line of this job."""
    return command.parser(__doc__)


if __name__ == "__main__":
    command.main("flexround.stages.summary", parser())
