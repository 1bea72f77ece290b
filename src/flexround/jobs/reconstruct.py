"""Quantize one run: reconstruct block by block, write integer codes, steps and zero points."""

import argparse

from flexround.jobs import command


def parser() -> argparse.ArgumentParser:
    """Return the command line of this job."""
    arguments = command.resumable(__doc__)
    arguments.add_argument("--state-gb", type=float, default=32.0, help="of activations written there in all")
    arguments.add_argument("--cache-mb", type=int, help="host memory for activations; half of it if not given")
    arguments.add_argument("--gpu-cache-mb", type=int, help="GPU memory for activations; half of it if not given")
    arguments.add_argument(
        "--preflight", action="store_true", help="say what memory and time it will take, and write nothing"
    )
    return arguments


if __name__ == "__main__":
    command.main("flexround.stages.reconstruct", parser())
