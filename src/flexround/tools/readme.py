"""Write a table and a figure of docs/results.md: the status of all tables, or the evidence of the scale real."""

import argparse
import logging
import os
from pathlib import Path

from flexround.errors import InputError
from flexround.io.artifacts import read_text, write_bytes, write_text
from flexround.results import grid, published_results, ranking, typed_csv
from flexround.results.claims import verdicts
from flexround.results.render import leads, overview, readme_tables
from flexround.results.render.figure_style import save_png
from flexround.results.render.overview import standing
from flexround.settings.load import load_params
from flexround.tools import cli

log = logging.getLogger(__name__)


def parser() -> argparse.ArgumentParser:
    """Return the command line of this program."""
    arguments = cli.parser(__doc__)
    arguments.add_argument("part", choices=["status", "evidence"], help="what is written")
    arguments.add_argument(
        "--tables", type=Path, default=published_results.DIRECTORY, help="directory of the tables' CSV files"
    )
    arguments.add_argument("--page", type=Path, default=Path("docs/results.md"), help="page whose table is replaced")
    arguments.add_argument("--claims", type=Path, help="claims.csv that the figure of the status is drawn from")
    arguments.add_argument("--drawn", type=Path, help="figure of the evidence, which is copied if it is there")
    arguments.add_argument("--figure", type=Path, required=True, help="where the figure is written")
    return arguments


def run(arguments: argparse.Namespace) -> None:
    """Replace the table between its markers in the page, and write the figure if there is what it is made of.

    Raises:
        InputError: the page has no markers, the table is missing, or the claims are missing or compare nothing.
    """
    table = status(arguments) if arguments.part == "status" else evidence(arguments)
    write_text(arguments.page, readme_tables.replaced(read_text(arguments.page), arguments.part, table))


def status(arguments: argparse.Namespace) -> str:
    """Draw the leads of the claims, and return the status of all tables."""
    params = load_params(arguments.scale)
    standings = [standing(table, arguments.tables / f"{table.name}.csv") for _, table in sorted(params.tables.items())]
    if arguments.claims:
        if not arguments.claims.exists():
            raise InputError(f"{arguments.claims}: missing; make it first: make results/claims.csv")
        lines = verdicts.against_adaround(verdicts.load(arguments.claims, params.scale))
        drawn = leads.draw(lines, "FlexRound against AdaRound in every cell", params.scale.name)
        save_png(drawn, arguments.figure)
        log.info("%s", arguments.figure)
    return readme_tables.status(standings, params.scale)


def evidence(arguments: argparse.Namespace) -> str:
    """Copy the figure, and return the first table of a scale with a link to the figure."""
    params = load_params(arguments.scale)
    path = arguments.tables / f"{params.tables[1].name}.csv"
    if not path.exists():
        raise InputError(f"{path}: missing; make the tables of the scale {params.scale.name}, then the reference")
    text = readme_tables.evidence(grid.load(path), params.tables[1], params.scale)
    claims = arguments.tables / published_results.published_name(params.scale, "claims.csv")
    if claims.exists():
        lines = verdicts.against_adaround(verdicts.load(claims, params.scale))
        text += f"\n{overview.outcomes(lines)}\n"
    ranking_csv = arguments.tables / published_results.published_name(params.scale, "ranking.csv")
    if ranked := typed_csv.load_made(ranking_csv, ranking.Line):
        text += f"\n{readme_tables.ranked(ranked)}\n"
    if arguments.drawn and arguments.drawn.exists():
        write_bytes(arguments.figure, arguments.drawn.read_bytes())
        log.info("%s", arguments.figure)
    if arguments.figure.exists():
        text += f"\n![Accuracy against bits]({os.path.relpath(arguments.figure, arguments.page.parent)})\n"
    return text


if __name__ == "__main__":
    cli.main(run, parser())
