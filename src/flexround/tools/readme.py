"""Write a table and a figure of docs/results.md: the status of all tables, or the evidence of the scale real."""

import argparse
import logging
import os
import re
import statistics
from collections.abc import Iterable
from pathlib import Path

from flexround.errors import InputError
from flexround.io.artifacts import read_text, write_text
from flexround.results import frames, grid, published_results, ranking
from flexround.results.claims import verdicts
from flexround.results.grid import GridRow, TableGrid
from flexround.results.render import leads, markdown, overview
from flexround.results.render.figure_style import save
from flexround.results.render.overview import Standing, standing
from flexround.results.render.words import plain, scale_note
from flexround.settings.load import load_params
from flexround.settings.schema import ScaleFacts
from flexround.settings.tables import Table
from flexround.tools import cli

log = logging.getLogger(__name__)
MARKERS = {  # the lines before and after a table in docs/results.md
    "status": ("<!-- status: made by `make status` -->", "<!-- end of status -->"),
    "evidence": ("<!-- evidence: made by `make evidence` -->", "<!-- end of evidence -->"),
}
MISSING = "--"


def parser() -> argparse.ArgumentParser:
    """Return the command line of this program."""
    arguments = cli.parser(__doc__)
    arguments.add_argument("part", choices=["status", "evidence"], help="what is written")
    arguments.add_argument(
        "--tables", type=Path, default=published_results.DIRECTORY, help="directory of the tables' CSV files"
    )
    arguments.add_argument("--page", type=Path, default=Path("docs/results.md"), help="page whose table is replaced")
    arguments.add_argument(
        "--figure", type=Path, required=True, help="where that of the status is written, or that of the evidence lies"
    )
    return arguments


def run(arguments: argparse.Namespace) -> None:
    """Replace the table between its markers in the page; draw the figure of the status if there are claims."""
    table = status(arguments) if arguments.part == "status" else evidence(arguments)
    write_text(arguments.page, replaced(read_text(arguments.page), arguments.part, table))


def status(arguments: argparse.Namespace) -> str:
    """Draw the leads of the claims, and return the status of all tables."""
    params = load_params(arguments.scale)
    standings = [standing(table, arguments.tables / f"{table.name}.csv") for _, table in sorted(params.tables.items())]
    claims = arguments.tables / published_results.published_name(params.scale, "claims.csv")
    if claims.exists():
        lines = verdicts.against_adaround(verdicts.load(claims, params.scale))
        drawn = leads.draw(lines, "FlexRound against AdaRound in every cell", params.scale.name)
        save(drawn, arguments.figure)
        log.info("%s", arguments.figure)
    return status_table(standings, params.scale)


def evidence(arguments: argparse.Namespace) -> str:
    """Return the first table of a scale, with a link to the figure if it is there."""
    params = load_params(arguments.scale)
    path = arguments.tables / f"{params.tables[1].name}.csv"
    if not path.exists():
        raise InputError(f"{path}: missing; make the tables of the scale {params.scale.name}, then the reference")
    text = evidence_table(grid.load(path), params.tables[1], params.scale)
    claims = arguments.tables / published_results.published_name(params.scale, "claims.csv")
    if claims.exists():
        lines = verdicts.against_adaround(verdicts.load(claims, params.scale))
        text += f"\n{overview.outcomes(lines)}\n"
    ranking_csv = arguments.tables / published_results.published_name(params.scale, "ranking.csv")
    if ranked := frames.load(ranking_csv, ranking.Line):
        text += f"\n{ranking_table(ranked)}\n"
    if arguments.figure.exists():
        text += f"\n![Accuracy against bits]({os.path.relpath(arguments.figure, arguments.page.parent)})\n"
    return text


def replaced(page: str, part: str, table: str) -> str:
    """Return a page in which ``table`` stands between the two lines that mark a part.

    Raises:
        InputError: the page has not exactly one pair of these lines.
    """
    begin, end = MARKERS[part]
    pattern = re.compile(f"{re.escape(begin)}\n.*?{re.escape(end)}", re.DOTALL)
    new, count = pattern.subn(lambda _: f"{begin}\n{table}{end}", page)
    if count != 1:
        raise InputError(f"{count} places between {begin} and {end}; write these two lines where the table shall stand")
    return new


def status_table(standings: Iterable[Standing], scale: ScaleFacts) -> str:
    """Return the status of every table, with differences to the paper's numbers if ``scale`` allows."""
    header = ["table", "about", "status", "cells", "FlexRound best"]
    rows = [[str(s.table.number), s.family, s.status, s.cells or MISSING, s.led or MISSING] for s in standings]
    if scale.comparable:
        header.append("farthest from the paper")
        rows = [[*row, s.worst or MISSING] for row, s in zip(rows, standings, strict=True)]
    note = (
        f"{scale_note(scale)} *FlexRound best*: of the cells that lead their contest by more than the noise, "
        "how many are FlexRound's."
    )
    return f"{note}\n\n{markdown.table(header, rows, len(header))}\n"


def evidence_table(grid: TableGrid, table: Table, scale: ScaleFacts) -> str:
    """Return a table with a row for each method and a column for each network and number of bits.

    Rows of full precision, which stand before all contests, fill every column of their network.
    """
    bits = list(dict.fromkeys(line.bits for line in grid.rows if any(entry.rival for entry in line.entries)))
    by_place = {(line.method, line.bits): line for line in grid.rows}
    header = ["top-1 (%)", *(f"{column.name}, {width}" for column in grid.columns for width in bits)]
    rows = []
    for method in dict.fromkeys(line.method for line in grid.rows):
        whole = next((line for line in grid.rows if line.method == method and line.bits not in bits), None)
        lines = [by_place.get((method, width), whole) for width in bits]
        rows.append([method, *(_value(line, column) for column in range(len(grid.columns)) for line in lines)])
    best = "Bold: best of its column by" if grid.wins[1] else "No value is the best of its column by"
    note = f"{plain(table.caption)} {scale_note(scale)} {_seeds(grid)} {_noise(grid)} {best} more than the noise."
    return f"{note}\n\n{markdown.table(header, rows)}\n"


def ranking_table(lines: Iterable[ranking.Line]) -> str:
    """Return how each method stands in all cells of a scale."""
    header = ["method", "unbeaten, % of its cells", *ranking.Line._fields[4:-1]]
    rows = [[markdown.escape(line.method), *map(str, line[3:-1])] for line in lines if line.by == ranking.ALL]
    return markdown.table([name.replace("_", " ") for name in header], rows)


def _value(line: GridRow | None, column: int) -> str:
    if line is None:
        return ""
    entry = line.cells[column][0]
    return markdown.strong(entry.value or MISSING, bool(entry.best))


def _seeds(grid: TableGrid) -> str:
    seeds = max(int(entry.n_seeds) for entry in grid.entries if entry.n_seeds)
    return f"Median of {seeds} seeds." if seeds > 1 else "One seed."


def _noise(grid: TableGrid) -> str:
    errors = [float(entry.stderr) for entry in grid.entries if entry.stderr and entry.rival]
    return f"Standard error of a value, from the test set: {statistics.median(errors):.1f}." if errors else ""


if __name__ == "__main__":
    cli.main(run, parser())
