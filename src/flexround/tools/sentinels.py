"""Compute the sentinels and compare them with the reference; one that moved ends with exit code 1."""

import argparse
import logging
import sys
from pathlib import Path

from flexround.artifacts import write_text
from flexround.tools import cli


def parser() -> argparse.ArgumentParser:
    """Return the command line of this stage."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    arguments.add_argument(
        "--reference", type=Path, default=Path("results/reference/sentinels.csv"), help="the CSV of the sentinels"
    )
    arguments.add_argument("--write", action="store_true", help="measure them and their variation anew")
    return arguments


def run(arguments: argparse.Namespace) -> None:
    """Check or write.

    Raises:
        InputError: no reference.
    """
    from flexround.regress import sentinels

    logging.getLogger("flexround").setLevel(logging.WARNING)  # blocks of many small networks
    if arguments.write:
        write_text(arguments.reference, sentinels.to_csv(sentinels.measure()))
        return
    expected = sentinels.read(arguments.reference)
    lines = sentinels.check(expected)
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.write(f"{len(expected)} sentinels compared with {arguments.reference}, {len(lines)} moved\n")
    if lines:
        sys.exit(1)


if __name__ == "__main__":
    cli.main(run, parser())
