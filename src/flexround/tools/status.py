"""Write the status table and the figure of the README, from tables and claims that are there."""

import argparse
import logging
import sys
from pathlib import Path

from flexround.errors import InputError
from flexround.io.artifacts import atomic_write, read_text, write_text
from flexround.results.render import leads, status_table
from flexround.results.render.figure_style import PNG_DPI, style
from flexround.results.render.overview import standing
from flexround.settings.load import load_params
from flexround.tools import cli

log = logging.getLogger(__name__)


def parser() -> argparse.ArgumentParser:
    """Return the command line of this program."""
    arguments = cli.parser(__doc__)
    arguments.add_argument(
        "--tables", type=Path, default=Path("results/reference"), help="directory of the tables' CSV files"
    )
    arguments.add_argument("--page", type=Path, help="page whose status table is replaced; printed if not given")
    arguments.add_argument(
        "--claims", type=Path, help="claims.csv that the figure is drawn from; none is drawn without"
    )
    arguments.add_argument("--figure", type=Path, default=Path("docs/figures/leads.png"), help="the figure")
    return arguments


def run(arguments: argparse.Namespace) -> None:
    """Run the stage.

    Raises:
        InputError: the page has no markers, or the claims are missing or compare nothing.
    """
    params = load_params(arguments.scale)
    standings = [standing(table, arguments.tables / f"{table.name}.csv") for _, table in sorted(params.tables.items())]
    table = status_table.markdown(standings, params.scale)
    if arguments.page:
        write_text(arguments.page, status_table.replaced(read_text(arguments.page), table))
    else:
        sys.stdout.write(table)
    if arguments.claims:
        if not arguments.claims.exists():
            raise InputError(f"{arguments.claims}: missing; make it first: make results/claims.csv")
        drawn = leads.draw(leads.read(read_text(arguments.claims)), params.scale.name)
        with style():
            atomic_write(arguments.figure, lambda path: drawn.savefig(path, dpi=PNG_DPI, metadata={"Software": None}))
        log.info("%s", arguments.figure)


if __name__ == "__main__":
    cli.main(run, parser())
