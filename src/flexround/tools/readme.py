"""Write a table of README.md (findings) or of docs/results.md (evidence of the scale real, status of all tables).

The tables come from results/reference.
"""

import argparse
import re
import statistics
from collections.abc import Iterable
from pathlib import Path

from flexround import metrics
from flexround.errors import InputError
from flexround.io.artifacts import read_text, write_text
from flexround.results import grid, published_results
from flexround.results.claims import verdicts
from flexround.results.claims.verdicts import JudgedClaim
from flexround.results.grid import Entry, GridRow, TableGrid
from flexround.results.render import leads, markdown, overview
from flexround.results.render.figure_style import save
from flexround.results.render.words import plain, scale_note
from flexround.settings.load import load_params
from flexround.settings.params import Params
from flexround.tools import cli

FINDINGS = (  # network and data; number of a table of the scale real; column; metric; recipe of FlexRound
    ("MobileNetV2, ImageNet", 8, "MobileNetV2", "top1", "b-flexround-w4"),
    ("", 8, "MobileNetV2", "top1", "b-flexround-w3"),
    ("", 8, "MobileNetV2", "top1", "b-flexround-w2"),
    ("", 8, "MobileNetV2", "top1", "q-flexround-w3a3"),
    ("EfficientNet-Lite0, ImageNet", 5, "EfficientNet-Lite0", "top1", "b-flexround-w4-tensor"),
    ("", 5, "EfficientNet-Lite0", "top1", "b-flexround-w3"),
    ("ResNet-20, CIFAR-10", 1, "ResNet-20", "top1", "b-flexround-w2"),
    ("MiniLM, STS-B", 6, "STS-B", "pearson", "q-flexround-w3a8"),
    ("SmolLM2-135M, WikiText2", 7, "WikiText2", "perplexity", "b-flexround-w4"),
)
PAGES = {"status": "docs/results.md", "findings": "README.md", "evidence": "docs/results.md"}
LEADS = Path("docs/figures/leads.png")
BITS = "![Accuracy against bits](figures/bits.png)"
MISSING = "--"


def parser() -> argparse.ArgumentParser:
    """Return the command line of this program."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("part", choices=[*PAGES], help="table to write")
    return arguments


def run(arguments: argparse.Namespace) -> None:
    """Replace the table between its markers in the page; the status also draws its figure."""
    page, table = Path(PAGES[arguments.part]), {"status": status, "findings": findings, "evidence": evidence}
    write_text(page, replaced(read_text(page), arguments.part, table[arguments.part]()))


def replaced(page: str, part: str, table: str) -> str:
    """Return a page with ``table`` between the two lines that mark a part.

    Raises:
        InputError: the page does not have exactly one pair of these lines.
    """
    begin, end = f"<!-- {part}: made by `make {part}` -->", f"<!-- end of {part} -->"
    pattern = re.compile(f"{re.escape(begin)}\n.*?{re.escape(end)}", re.DOTALL)
    new, count = pattern.subn(lambda _: f"{begin}\n{table}{end}", page)
    if count != 1:
        raise InputError(f"{count} places between {begin} and {end}; write these two lines around the table")
    return new


def status() -> str:
    """Draw FlexRound's leads at the scale mini, and return the status of its tables."""
    params = load_params("mini")
    save(
        leads.draw(verdicts.against_adaround(_claims(params)), "FlexRound against AdaRound in every cell", "mini"),
        LEADS,
    )
    standings = [overview.standing(table, _csv(table.name)) for _, table in sorted(params.tables.items())]
    rows = [[str(s.table.number), s.family, s.status, s.cells or MISSING, s.led or MISSING] for s in standings]
    header = ["table", "about", "status", "cells", "FlexRound best"]
    note = (
        f"{scale_note(params.scale)} *FlexRound best*: of the cells that lead their contest by more than the noise, "
        "how many are FlexRound's."
    )
    return f"{note}\n\n{markdown.table(header, rows, len(header))}\n"


def findings() -> str:
    """Return the comparison of FlexRound with AdaRound on released networks, a row for each of ``FINDINGS``."""
    params = load_params("real")
    outcomes = {
        (line.place, line.column, line.metric, line.recipe, line.other_recipe): re.split("[ ,]", line.outcome)[0]
        for claim in _claims(params)
        for line in claim.lines
    }
    rows = []
    for network, number, column, metric, recipe in FINDINGS:
        table, rival = params.tables[number], recipe.replace("flexround", "adaround")
        place = (table.place, column, metric, recipe)
        verdict = "; ".join(outcomes[key] for end in ("", "-equal") if (key := (*place, rival + end)) in outcomes)
        published = (row.extra[0] for row in table.rows() if row.extra and row.recipe in (rival, recipe))
        entries = grid.load(_csv(table.name)).entries
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


def evidence() -> str:
    """Return the first table of the scale real, with the outcomes of its claims and a link to its figure.

    The table has a row for each method and a column for each network and number of bits. Rows of full precision, which
    come before all contests, fill every column of their network.
    """
    params = load_params("real")
    table = params.tables[1]
    shown = grid.load(_csv(table.name))
    bits = list(dict.fromkeys(line.bits for line in shown.rows if any(entry.rival for entry in line.entries)))
    by_place = {(line.method, line.bits): line for line in shown.rows}
    header = ["top-1 (%)", *(f"{column.name}, {width}" for column in shown.columns for width in bits)]
    rows = []
    for method in dict.fromkeys(line.method for line in shown.rows):
        whole = next((line for line in shown.rows if line.method == method and line.bits not in bits), None)
        lines = [by_place.get((method, width), whole) for width in bits]
        rows.append([method, *(_value(line, column) for column in range(len(shown.columns)) for line in lines)])
    note = f"{plain(table.caption)} {scale_note(params.scale)} {_noise(shown)}"
    outcomes = overview.outcomes(verdicts.against_adaround(_claims(params)))
    return f"{note}\n\n{markdown.table(header, rows)}\n\n{outcomes}\n\n{BITS}\n"


def _value(line: GridRow | None, column: int) -> str:
    if line is None:
        return ""
    entry = line.cells[column][0]
    return f"**{entry.value}**" if entry.best else entry.value or MISSING


def _noise(grid: TableGrid) -> str:
    """Return the number of seeds, the usual standard error and the meaning of bold."""
    seeds = max(int(entry.n_seeds) for entry in grid.entries if entry.n_seeds)
    errors = statistics.median(float(entry.stderr) for entry in grid.entries if entry.stderr and entry.rival)
    error = f"Standard error of a value, from the test set: {errors:.1f}."
    return f"Median of {seeds} seeds. {error} Bold: best of its column by more than the noise."


def _csv(name: str) -> Path:
    return published_results.DIRECTORY / f"{name}.csv"


def _claims(params: Params) -> list[JudgedClaim]:
    """Return the published claims of a scale."""
    path = published_results.DIRECTORY / published_results.published_name(params.scale, "claims.csv")
    return verdicts.load(path, params.scale)


if __name__ == "__main__":
    cli.main(run, parser())
