"""Write a table of README.md (findings) or of docs/results.md (evidence of the scale real, status of all tables)."""

import argparse
import logging
import os
import re
import statistics
from collections.abc import Iterable
from pathlib import Path

from flexround import metrics
from flexround.errors import InputError
from flexround.io.artifacts import read_text, write_text
from flexround.results import frames, grid, published_results, ranking
from flexround.results.claims import verdicts
from flexround.results.grid import Entry, GridRow, TableGrid
from flexround.results.render import leads, markdown, overview
from flexround.results.render.figure_style import save
from flexround.results.render.overview import Standing, standing
from flexround.results.render.words import plain, scale_note
from flexround.settings.load import load_params
from flexround.settings.schema import ScaleFacts
from flexround.settings.tables import Table
from flexround.tools import cli

log = logging.getLogger(__name__)
FINDINGS = (  # network and data; number of a table of the scale real; column; metric; recipe of FlexRound
    ("MobileNetV2, ImageNet", 8, "MobileNetV2", "top1", "b-flexround-w4"),
    ("", 8, "MobileNetV2", "top1", "b-flexround-w3"),
    ("", 8, "MobileNetV2", "top1", "b-flexround-w2"),
    ("", 8, "MobileNetV2", "top1", "q-flexround-w3a3"),
    ("EfficientNet-Lite0, photographs", 5, "EfficientNet-Lite0", "top1", "b-flexround-w4-tensor"),
    ("ResNet-20, CIFAR-10", 1, "ResNet-20", "top1", "b-flexround-w2"),
    ("MiniLM, STS-B", 6, "STS-B", "pearson", "q-flexround-w4a8"),
    ("SmolLM2-135M, WikiText2", 7, "WikiText2", "perplexity", "b-flexround-w4"),
)
MARKERS = {  # the lines before and after a table
    "status": ("<!-- status: made by `make status` -->", "<!-- end of status -->"),
    "findings": ("<!-- findings: made by `make findings` -->", "<!-- end of findings -->"),
    "evidence": ("<!-- evidence: made by `make evidence` -->", "<!-- end of evidence -->"),
}
MISSING = "--"


def parser() -> argparse.ArgumentParser:
    """Return the command line of this program."""
    arguments = cli.parser(__doc__)
    arguments.add_argument("part", choices=[*MARKERS], help="what is written")
    arguments.add_argument(
        "--tables", type=Path, default=published_results.DIRECTORY, help="directory of the tables' CSV files"
    )
    arguments.add_argument("--page", type=Path, default=Path("docs/results.md"), help="page whose table is replaced")
    arguments.add_argument(
        "--figure", type=Path, help="where the status's is written, and the evidence's is; findings have none"
    )
    return arguments


def run(arguments: argparse.Namespace) -> None:
    """Replace the table between its markers in the page; draw the figure of the status if the scale has claims."""
    table = {"status": status, "findings": findings, "evidence": evidence}[arguments.part](arguments)
    write_text(arguments.page, replaced(read_text(arguments.page), arguments.part, table))


def status(arguments: argparse.Namespace) -> str:
    """Draw the leads from the claims, and return the status of all tables."""
    params = load_params(arguments.scale)
    standings = [standing(table, arguments.tables / f"{table.name}.csv") for _, table in sorted(params.tables.items())]
    claims = arguments.tables / published_results.published_name(params.scale, "claims.csv")
    if claims.exists():
        lines = verdicts.against_adaround(verdicts.load(claims, params.scale))
        drawn = leads.draw(lines, "FlexRound against AdaRound in every cell", params.scale.name)
        save(drawn, arguments.figure)
        log.info("%s", arguments.figure)
    return status_table(standings, params.scale)


def findings(arguments: argparse.Namespace) -> str:
    """Return the comparison of FlexRound with AdaRound on released networks, a row for each of ``FINDINGS``."""
    params = load_params(arguments.scale)
    claims = arguments.tables / published_results.published_name(params.scale, "claims.csv")
    outcomes = {
        (line.place, line.column, line.metric, line.recipe, line.other_recipe): re.split("[ ,]", line.outcome)[0]
        for claim in verdicts.load(claims, params.scale)
        for line in claim.lines
    }
    rows = []
    for network, number, column, metric, recipe in FINDINGS:
        table, rival = params.tables[number], recipe.replace("flexround", "adaround")
        entries = grid.load(arguments.tables / f"{table.name}.csv").entries
        place = (table.place, column, metric, recipe)
        verdict = "; ".join(outcomes[key] for end in ("", "-equal") if (key := (*place, rival + end)) in outcomes)
        published = (row.extra[0] for row in table.rows() if row.extra and row.recipe in (rival, recipe))
        shown = [entry for entry in entries if (entry.column, entry.metric) == (column, metric)]
        rows.append([network, *_beside(shown, recipe, rival), verdict, " / ".join(published)])
    header = ["network, data", "bits (W/A)", "full precision", "RTN", "AdaRound", "FlexRound", "best other"]
    return markdown.table([*header, "FlexRound is", "paper's loss"], rows, 2) + "\n"


def _beside(entries: Iterable[Entry], recipe: str, rival: str) -> list[str]:
    """Return bits, then values: full precision, round-to-nearest, AdaRound, FlexRound, and the best other rival."""
    by_recipe = {entry.recipe: entry for entry in entries}
    ours = by_recipe[recipe]
    contest = [entry for entry in by_recipe.values() if entry.group == ours.group]
    nearest = next(entry for entry in contest if "rtn" in entry.recipe)
    others = [entry for entry in contest if not re.search("flexround|adaround|rtn", entry.recipe)]
    sign = metrics.of(ours.metric).sign
    best = max(others, key=lambda entry: sign * float(entry.value or 0), default=None)
    shown = (by_recipe["full-precision"], nearest, by_recipe[rival], ours)
    return [
        f"{ours.method.split()[0]}, {ours.bits}",
        *(entry.value for entry in shown),
        f"{best.value}, {best.method}" if best else "",
    ]


def evidence(arguments: argparse.Namespace) -> str:
    """Return the first table of a scale, with a link to the figure if it exists."""
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
    """Return a page with ``table`` between the two lines that mark a part.

    Raises:
        InputError: the page does not have exactly one pair of these lines.
    """
    begin, end = MARKERS[part]
    pattern = re.compile(f"{re.escape(begin)}\n.*?{re.escape(end)}", re.DOTALL)
    new, count = pattern.subn(lambda _: f"{begin}\n{table}{end}", page)
    if count != 1:
        raise InputError(f"{count} places between {begin} and {end}; write these two lines where the table shall stand")
    return new


def status_table(standings: Iterable[Standing], scale: ScaleFacts) -> str:
    """Return the status of every table, with differences from the paper's numbers if ``scale`` is comparable."""
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

    Rows of full precision, which come before all contests, fill every column of their network.
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
    """Return the standing of each method in all cells of a scale."""
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
