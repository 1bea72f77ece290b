"""Write the tables of README.md (findings) or docs/results.md (evidence of the scale real, status of all tables).

The tables come from results/reference.
"""

import argparse
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from flexround import metrics
from flexround.errors import InputError
from flexround.io.artifacts import read_text, write_text
from flexround.jobs import tables as jobs
from flexround.results import frames, grid, published_results
from flexround.results.claims import verdicts
from flexround.results.claims.specs import AT_EQUAL, budget_key
from flexround.results.claims.verdicts import JudgedClaim, Judgement
from flexround.results.grid import Entry
from flexround.results.render import budgets, leads, markdown, overview
from flexround.results.render.budgets import Point
from flexround.results.render.figure_style import save
from flexround.results.render.words import scale_note
from flexround.settings.layout import FULL_PRECISION, PARAMS
from flexround.settings.load import load_params
from flexround.settings.params import Params
from flexround.settings.plan import Plan
from flexround.settings.tables import Table
from flexround.settings.validation import read_yaml
from flexround.tools import cli

Column = tuple[str, str, str, str]  # title; column, metric and recipe of a table of the scale real
METHODS = {  # label -> name in recipes, end of the recipe
    "RTN": ("rtn", ""),
    "AdaQuant": ("adaquant", ""),
    "AdaRound": ("adaround", ""),
    "AdaRound, equal iterations": ("adaround", AT_EQUAL),
    "GPTQ": ("gptq", ""),
    "SignRound": ("signround", ""),
    "LRQ": ("lrq", ""),
    "FlexRound": ("flexround", ""),
}
NOT_LEARNED = {"rtn", "gptq"}
WINNERS = {verdicts.BETTER: "FlexRound", verdicts.WORSE: "AdaRound"}
PAGES = {"status": "docs/results.md", "findings": "README.md", "evidence": "docs/results.md"}
LEADS = Path("docs/figures/leads.png")
MISSING = "--"


def parser() -> argparse.ArgumentParser:
    """Return the command line of this program."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("part", choices=[*PAGES], help="table to write")
    return arguments


def run(arguments: argparse.Namespace) -> None:
    """Replace the tables between their markers in the page; the status also draws its figure."""
    page = Path(PAGES[arguments.part])
    write_text(page, replaced(read_text(page), arguments.part, made(arguments.part)))


def made(part: str) -> dict[str, str]:
    """Return the tables of a part by the name in their markers."""
    if part == "status":
        return {part: status()}
    plan, columns = Plan(load_params("real")), read_yaml(PARAMS / "pages.yaml")[part]
    tables = {table.name: table for table in plan.params.tables.values()}
    if part == "findings":
        return {part: findings(tables, columns, plan.params)}
    points = itertools.groupby(frames.load(_csv("real-figure9"), Point), key=lambda point: point.panel)
    panels = {panel: budgets.table(list(group)) for panel, group in points}
    return panels | {name: evidence(tables[name], columns[name], plan) for name in columns}


def replaced(page: str, part: str, tables: Mapping[str, str]) -> str:
    """Return a page with each table between the two lines that mark it.

    Raises:
        InputError: the page does not have exactly one pair of these lines for each table.
    """
    for name, table in tables.items():
        begin, end = f"<!-- {name}: made by `make {part}` -->\n", f"<!-- end of {name} -->"
        around = re.split(f"{re.escape(begin)}.*?{re.escape(end)}", page, flags=re.DOTALL)
        if len(around) != 2:
            raise InputError(f"{name}: {len(around) - 1} places between {begin} and {end}; write these lines around it")
        page = f"{begin}{table}{end}".join(around)
    return page


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


def findings(tables: Mapping[str, Table], columns: Iterable[tuple[str, str, str, str, str]], params: Params) -> str:
    """Return the comparison of FlexRound with AdaRound on released networks, a row for each column of a table."""
    leads, rows = _leads(params), []
    for network, name, column, metric, recipe in columns:
        table, rival = tables[name], recipe.replace("flexround", "adaround")
        found = (leads.get((table.place, column, metric, recipe, rival + end)) for end in ("", AT_EQUAL))
        verdict = "; ".join(_outcome(lead) for lead in found if lead)
        published = (row.extra[0] for row in table.rows() if row.extra and row.recipe in (rival, recipe))
        entries = grid.load(_csv(name)).entries
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


def evidence(table: Table, columns: Sequence[Column], plan: Plan) -> str:
    """Return the numbers of each method, then FlexRound's leads over AdaRound; ``{}`` in a recipe is the method.

    Beside the paper's losses of accuracy, our numbers are losses, too: points below full precision.
    """
    entries = {(entry.column, entry.metric, entry.recipe): entry for entry in grid.load(_csv(table.name)).entries}
    paper = {row.recipe: row.extra[0] for row in table.rows() if row.extra}
    iterations, leads = jobs.budgets(plan), _leads(plan.params)
    wholes = [entries[column, metric, FULL_PRECISION].value for _, column, metric, _ in columns]
    rows = [] if paper else [["Full precision", "", *wholes]]
    for label, (method, end) in METHODS.items():
        places = [(column, metric, recipe.format(method) + end) for _, column, metric, recipe in columns]
        found = [entries.get(place) for place in places]
        runs = [entry.run for entry in found if entry and method not in NOT_LEARNED]
        counts = "; ".join(dict.fromkeys(f"{iterations[budget_key(run)]:,}" for run in runs))
        published = [paper.get(recipe, "").replace(MISSING, "") for _, _, recipe in places]
        values = [_value(entry, whole if paper else "") for entry, whole in zip(found, wholes, strict=True)]
        rows += [row for row in ([f"{label}, paper", "", *published], [label, counts, *values]) if any(row[2:])]
    for title, end in (("Lead", ""), ("Lead, equal iterations", AT_EQUAL)):
        pairs = [
            (table.place, column, metric, recipe.format("flexround"), recipe.format("adaround") + end)
            for _, column, metric, recipe in columns
        ]
        margins = [leads.get(pair) for pair in pairs]
        if any(margins):
            rows.append([title, "", *(f"{lead.margin} ({lead.stderr})" if lead else "" for lead in margins)])
            rows.append(["Winner", "", *(_outcome(lead, WINNERS) if lead else "" for lead in margins)])
    return markdown.table(["", "iterations", *(title for title, *_ in columns)], rows) + "\n"


def _value(entry: Entry | None, whole: str) -> str:
    """Return a number, or its distance from full precision if that is given; bold if it leads its contest."""
    if entry is None:
        return ""
    value = f"{float(whole) - float(entry.value):.2f}" if whole else entry.value
    return f"**{value}**" if entry.best else value


def _outcome(lead: Judgement, words: Mapping[str, str] = {}) -> str:
    """Return one of better, worse, equal and undecided, or the word for it."""
    outcome = re.split("[ ,]", lead.outcome)[0]
    return words.get(outcome, outcome)


def _leads(params: Params) -> dict[tuple[str, str, str, str, str], Judgement]:
    """Return the published comparisons of the claims by place, column, metric and the two recipes."""
    lines = (line for claim in _claims(params) for line in claim.lines)
    return {(line.place, line.column, line.metric, line.recipe, line.other_recipe): line for line in lines}


def _csv(name: str) -> Path:
    return published_results.DIRECTORY / f"{name}.csv"


def _claims(params: Params) -> list[JudgedClaim]:
    """Return the published claims of a scale."""
    path = published_results.DIRECTORY / published_results.published_name(params.scale, "claims.csv")
    return verdicts.load(path, params.scale)


if __name__ == "__main__":
    cli.main(run, parser())
