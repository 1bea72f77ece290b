"""Sum up the tables of a scale in one small JSON: what ``dvc metrics show`` and ``dvc metrics diff`` read."""

import argparse
from pathlib import Path

from flexround.artifacts import write_json
from flexround.results.summary import summarise
from flexround.stages import cli


def parser() -> argparse.ArgumentParser:
    """Return the command line of this stage."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--tables", type=Path, nargs="+", required=True, help="tidy CSV of each table")
    arguments.add_argument("--out", type=Path, required=True, help="the JSON file")
    return arguments


def run(arguments: argparse.Namespace) -> None:
    """Run the stage."""
    write_json(arguments.out, summarise(arguments.tables))


if __name__ == "__main__":
    cli.main(run, parser())
