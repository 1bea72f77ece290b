"""Everything that is there as one HTML page that needs no network, with where each cell comes from."""

import base64
import csv
import itertools
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from markupsafe import Markup
from plotly.offline import get_plotlyjs

from flexround import metrics
from flexround.io import artifacts
from flexround.results import published_results
from flexround.results.paired import Z
from flexround.results.paper_numbers import DECIMALS
from flexround.results.render import (
    findings,
    html,
    jinja,
    job_costs,
    lead_plots,
    leads,
    origins,
    plots,
    report_claims,
    table_layout,
    words,
)
from flexround.results.render.overview import Standing, standing
from flexround.results.render.table_layout import Entry, Layout, LayoutRow
from flexround.settings.layout import PARAMS, Run
from flexround.settings.plan import Plan


class Shown(NamedTuple):
    """A cell on the page: its place in the CSV, its column in numbers from 0, and how many columns it fills."""

    entry: Entry
    place: int
    column: int
    span: int


def render(root: Path, plan: Plan, own: str | None = None) -> str:
    """Return the page of what is in ``root``/results and ``root``/logs.

    What isn't made there is shown as this repository publishes it, and says so, or is listed as not run. ``own`` is the
    file of the user's whose rows are among the tables.

    Raises:
        InputError: a result that isn't what it should be.
    """
    directory = root / "results" / plan.scale.name
    tables = [table for _, table in sorted(plan.params.tables.items())]
    standings = [standing(table, *published_results.find(root, plan.scale, f"{table.name}.csv")) for table in tables]
    runs = {s.table.number: _table_runs(s, root) for s in standings}
    claims = published_results.find(root, plan.scale, "claims.csv")
    judged = report_claims.read(claims.path, PARAMS / plan.scale.shows.claims)
    verdicts = report_claims.total(judged)
    compared = leads.comparisons(artifacts.read_text(claims.path)) if claims.path.exists() else []
    sheets = plots.Sheets(standings)
    first = lead_plots.plot(compared, sheets)
    sizes = plots.sizes(plan, root)
    by_bits, by_seeds = plots.of_bits(standings, plan, sheets), plots.of_seeds(standings, sizes, root, sheets)
    more = [by_bits, plots.of_sizes(plan, sizes), by_seeds]
    data = origins.provenance(root, plan, standings, own) | {
        "plots": {plot.name: [choice._asdict() for choice in plot.choices] for plot in (first, *more)},
        "places": {s.table.number: s.table.title for s in standings},
        "words": words.WORDS,
        "decimals": DECIMALS,
        "z": Z,
        "relative": [name for name, metric in metrics.METRICS.items() if metric.relative],
        "whole": [name for name in plan.params.recipes.recipes if plots.whole(plan, name)],
    }
    return jinja.HTML.get_template("report.html").render(
        scale=plan.scale,
        note=table_layout.scale_note(plan.scale),
        standings=standings,
        complete=plan.complete_tables(),
        families=list(dict.fromkeys(s.family for s in standings)),
        rows=rows,
        texts=html.texts,
        plain=table_layout.plain,
        absent=table_layout.absent,
        legend=lambda of: table_layout.legend(of, best="Bold", partial="†", missing="—"),
        figures={number: _image(directory / f"figure{number}.png") for number in sorted(plan.figures)},
        published=sum(s.published for s in standings),
        claims=judged,
        claims_published=claims.published,
        verdicts=verdicts,
        found=findings.sentences(verdicts, compared, standings, _others(directory, itertools.chain(*runs.values()))),
        first=first,
        more=more,
        of_blocks=plots.BLOCKS,
        words=words.of,
        errata=_list(published_results.find(root, plan.scale, "errata.csv").path),
        costs={number: _seconds(root, plan, of_table) for number, of_table in runs.items()},
        total=_seconds(root, plan, itertools.chain(*runs.values())),
        stages=list(job_costs.STAGES.values()),
        data=Markup(_json(data)),
        plotly=Markup(get_plotlyjs()),
    )


def rows(table: Layout) -> list[tuple[LayoutRow, list[Shown]]]:
    """Return the rows of a table with the place of each cell."""
    placed, index = [], 0
    for line in table.lines:
        cells, column = [], 0
        for cell, last in table.cells(line):
            for position, entry in enumerate(cell, start=1):
                span = last if position == len(cell) else 1
                cells.append(Shown(entry, index, column, span))
                index, column = index + 1, column + span
        placed.append((line, cells))
    return placed


def _table_runs(standing: Standing, root: Path) -> list[Run]:
    """Return the evaluated runs of a table, each once; none of a table of settings."""
    entries = standing.layout.entries if standing.layout else []
    return list(dict.fromkeys(run for entry in entries for run in origins.evaluated(entry, root)))


def _others(directory: Path, runs: Iterable[Run]) -> list[str]:
    """Return the evaluated runs of a scale that are none of ``runs``, with their path below ``directory``'s."""
    found = {str(path.parent.relative_to(directory.parent)) for path in directory.glob("evaluated/**/metrics.json")}
    return sorted(found - {str(run).replace("/", "/evaluated/", 1) for run in runs})


def _seconds(root: Path, plan: Plan, runs: Iterable[Run]) -> dict[str, float]:
    """Return the seconds of all jobs behind runs, by stage and together."""
    by_stage = job_costs.seconds_by_stage(root, plan, runs)
    return {**by_stage, "together": sum(by_stage.values())} if by_stage else {}


def _image(path: Path) -> str | None:
    """Return a PNG as a data address; None if the figure isn't drawn."""
    return "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode() if path.exists() else None


def _list(path: Path) -> list[list[str]]:
    """Return the lines of a CSV, the header first; none if it isn't made."""
    return list(csv.reader(artifacts.read_text(path).splitlines())) if path.exists() else []


def _json(value: Any) -> str:
    """Return JSON that can stand inside a script element."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
