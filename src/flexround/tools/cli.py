"""The command line shared by all tools: logging, and errors meant for the user."""

import argparse
import logging
import sys
from collections.abc import Callable
from pathlib import Path

from flexround.errors import USER_ERROR, FlexRoundError, InputError
from flexround.settings.params import Params


def parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options of all tools that handle one scale."""
    arguments = argparse.ArgumentParser(description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    arguments.add_argument("--scale", default="mini", help="name of a file in params/scales, or a path to one")
    return arguments


def main(run: Callable[[argparse.Namespace], None], parser: argparse.ArgumentParser) -> None:
    """Parse the command line and run a tool; a FlexRoundError gives exit code 2 without a traceback."""
    arguments = parser.parse_args()
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    for name in ("onnx_ir", "fontTools"):  # they log each replaced constant and each table of a font
        logging.getLogger(name).setLevel(logging.WARNING)
    try:
        run(arguments)
    except FlexRoundError as error:
        logging.getLogger(__name__).error("error: %s", error)
        sys.exit(USER_ERROR)


def tables(params: Params, directory: Path) -> dict[int, Path]:
    """Return the existing CSV files of tables, by number.

    Raises:
        InputError: no table exists.
    """
    paths = {number: directory / f"{table.name}.csv" for number, table in params.tables.items()}
    if not (existing := {number: path for number, path in paths.items() if path.exists()}):
        raise InputError(f"{directory}: has no table of the scale {params.scale.name}; make the tables first")
    return existing
