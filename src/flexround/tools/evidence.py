"""Write the first table of the README from the reference of the scale real, and copy the figure beside it."""

import argparse
import logging
import os
from pathlib import Path

from flexround.errors import InputError, look_up
from flexround.io.artifacts import read_text, write_bytes, write_text
from flexround.results.render import evidence_table, status_table
from flexround.settings.load import load_params
from flexround.tools import cli

log = logging.getLogger(__name__)


def parser() -> argparse.ArgumentParser:
    """Return the command line of this program."""
    arguments = cli.parser(__doc__)
    arguments.set_defaults(scale="real")
    arguments.add_argument("--table", type=Path, default=Path("results/reference/real1.csv"), help="CSV of the table")
    arguments.add_argument("--page", type=Path, default=Path("README.md"), help="page whose table is replaced")
    arguments.add_argument("--drawn", type=Path, default=Path("results/real/figure8.png"), help="the figure, if made")
    arguments.add_argument("--figure", type=Path, default=Path("docs/figures/bits.png"), help="where it is copied to")
    return arguments


def run(arguments: argparse.Namespace) -> None:
    """Run the stage.

    Raises:
        InputError: the table is missing, or the page has no markers.
    """
    if not arguments.table.exists():
        raise InputError(f"{arguments.table}: missing; make the tables of the scale real, then the reference")
    params = load_params(arguments.scale)
    spec = look_up("table", {each.name: each for each in params.tables.values()}, arguments.table.stem)
    table = evidence_table.markdown(read_text(arguments.table), spec, params.scale)
    if arguments.drawn.exists():
        write_bytes(arguments.figure, arguments.drawn.read_bytes())
        log.info("%s", arguments.figure)
    if arguments.figure.exists():
        table += f"\n![Accuracy against bits]({os.path.relpath(arguments.figure, arguments.page.parent)})\n"
    marks = evidence_table.BEGIN, evidence_table.END
    write_text(arguments.page, status_table.replaced(read_text(arguments.page), table, *marks))


if __name__ == "__main__":
    cli.main(run, parser())
