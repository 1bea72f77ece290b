"""Draw the calibration samples of a seed and store the very samples, so that all methods see the same ones."""

import argparse

from flexround.jobs import command


def parser() -> argparse.ArgumentParser:
    """Return the command line of this job."""
    return command.parser(__doc__)


if __name__ == "__main__":
    command.main("flexround.stages.calibrate", parser())
