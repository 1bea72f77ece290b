"""All results as one HTML page that works offline, with the origin of each cell."""

import base64
import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path

from flexround import metrics
from flexround.results import frames, published_results, ranking
from flexround.results.claims import verdicts
from flexround.results.claims.verdicts import FAILS, NOT_RUN, JudgedClaim, Judgement
from flexround.results.paper_numbers import Erratum
from flexround.results.render import html, origins, overview, pictures, words
from flexround.results.render.html import link
from flexround.results.render.overview import Standing, standing
from flexround.settings import user_rows
from flexround.settings.layout import Run
from flexround.settings.plan import Plan

COMPARISONS = (
    *("Place", "Cell", "Rows", "Claim", "Iterations", "Paper"),
    *("Ours", "Noise", "p", "p adjusted", "Verdict", "Outcome"),
)
ERRATA = ("Kind", "Place", "Row", "Cell", "Printed", "What is wrong")
STAGES = (*origins.STAGES.values(), "together")


def render(root: Path, plan: Plan, own: str | None = None) -> str:
    """Return the page of all results in ``root``/results and costs in ``root``/logs.

    A missing result is replaced by the published result, with a note, or listed as not run. ``own`` is the user's file
    of own rows, which the tables include.
    """
    directory = root / "results" / plan.scale.name
    tables = [table for _, table in sorted(plan.params.tables.items())]
    standings = [standing(table, *published_results.find(root, plan.scale, f"{table.name}.csv")) for table in tables]
    runs = {
        s.table.number: list(dict.fromkeys(run for entry in s.entries for run in origins.evaluated(entry, root)))
        for s in standings
    }
    every_run = list(itertools.chain(*runs.values()))
    shared = (published_results.find(root, plan.scale, name) for name in published_results.SHARED)
    claims_csv, errata_csv, ranking_csv = shared
    ranked = frames.load(ranking_csv.path, ranking.Line)
    claims = verdicts.load(claims_csv.path, plan.scale)
    leads = verdicts.against_adaround(claims)
    costs = {number: _seconds(root, plan, f"Table {number}", of_table) for number, of_table in runs.items() if of_table}
    sheets = pictures.Sheets(standings)
    sizes = pictures.sizes(plan, root)
    complete, unmade = plan.complete_tables(), [s for s in standings if not s.grid]
    figures = {number: _image(directory / f"figure{number}.png") for number in sorted(plan.figures)}
    found = origins.sheets(root, plan, standings, own)
    return html.HTML.get_template("report.html").render(
        scale=plan.scale,
        given=user_rows.given_as(plan.scale.name, root),
        standings=standings,
        not_run=[
            (f"{s.table.title}: {s.title}.", f"{s.table.name}.csv", s.family)
            for s in unmade
            if s.table.number in complete
        ],
        lacking=sum(s.table.number not in complete for s in unmade),
        families=list(dict.fromkeys(s.family for s in standings)),
        figures=[(number, image) for number, image in figures.items() if image],
        undrawn=[
            (f"Figure {number}: not run.", f"figure{number}.pdf", "") for number in figures if not figures[number]
        ],
        published=sum(s.published for s in standings),
        made=published_results.made(root, plan.scale),
        claims=claims,
        claims_published=claims_csv.published,
        comparisons=comparisons,
        comparisons_header=COMPARISONS,
        found=overview.sentences(verdicts.total(claims), leads, standings, _others(directory, every_run)),
        leads=pictures.of_leads(leads, sheets, plan.scale.name),
        plots=[
            pictures.of_bits(standings, plan, sheets),
            pictures.of_sizes(plan, sizes, sheets),
            pictures.of_seeds(standings, sizes, root, sheets),
        ],
        ranking=[line[1:-1] for line in ranked],
        ranking_families=[line.group if line.by == ranking.FAMILY else "" for line in ranked],
        ranking_published=ranking_csv.published,
        errata_header=ERRATA,
        errata=errata(frames.load(errata_csv.path, Erratum)),
        status=_status(standings, plan.scale.comparable),
        costs=[["Table", *STAGES], *costs.values()],
        cost_families=[s.family for s in standings if s.table.number in costs],
        total=_seconds(root, plan, "All", every_run),
        origins=found,
        command=origins.COMMAND,
        sheet_ids={cell: f"sheet-{number}" for number, sheet in enumerate(found) for cell, *_ in sheet.cells},
    )


def _others(directory: Path, runs: Iterable[Run]) -> list[str]:
    """Return the evaluated runs below ``directory`` that are not among ``runs``, as paths."""
    found = {str(path.parent.relative_to(directory.parent)) for path in directory.glob("evaluated/**/metrics.json")}
    return sorted(found - {str(run).replace("/", "/evaluated/", 1) for run in runs})


def _status(standings: Iterable[Standing], comparable: bool) -> list[list[str]]:
    """Return the header and the rows of the status of all tables."""
    header = ["Table", "What", "Family", "Status", "Cells"]
    header += ["Farthest from the paper"] if comparable else []
    rows = [[*header, "FlexRound best"]]
    for s in standings:
        name = link(s.table.title, s.table.name if s.grid else "")
        worst = [s.worst] if comparable else []
        led = s.led or ("no best" if s.grid and s.table.groups else "")
        rows.append([name, s.title, s.family, "published" if s.published else s.status, s.cells, *worst, led])
    return rows


def _seconds(root: Path, plan: Plan, name: str, runs: Iterable[Run]) -> list[str]:
    """Return a row with the seconds of all jobs behind runs, by stage and in total; empty without seconds."""
    of = origins.seconds_by_stage(root, plan, runs)
    of |= {"together": sum(of.values())} if of else {}
    return [name, *(f"{of[stage]:.{0 if of[stage] >= 10 else 1}f}" if stage in of else "" for stage in STAGES)]


def _image(path: Path) -> str | None:
    return "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode() if path.exists() else None


def comparisons(claim: JudgedClaim) -> list[tuple[object, ...]]:
    """Return a row for each comparison of a claim, see ``COMPARISONS``."""
    return [
        (
            line.place.capitalize(),
            _cell(line),
            f"{line.one.split(' [')[0]} / {line.other.split(' [')[0]}",
            line.criterion,
            f"{line.iterations or '—'} / {line.other_iterations or '—'}",
            _signed(line.published_margin, line.metric) + (f", {FAILS}" if line.published == FAILS else ""),
            _signed(line.margin, line.metric),
            line.noise or ("—" if line.verdict == NOT_RUN else "unknown"),
            words.probability(line.p_value) or "—",
            words.probability(line.p_adjusted) or "—",
            line.verdict,
            line.outcome or "—",
        )
        for line in claim.lines
    ]


def errata(mistakes: Sequence[Erratum]) -> list[tuple[object, ...]]:
    """Return a row for each erratum, see ``ERRATA``."""
    return [(m.kind, f"Table {m.table}, row {m.row}", m.method, _cell(m), m.value, m.text) for m in mistakes]


def _cell(line: Judgement | Erratum) -> str:
    """Return the place of a number in its table, in words."""
    return words.listed(line.section, line.column, line.bits, words.of(line.metric))


def _signed(margin: str, metric: str) -> str:
    return "—" if not margin else f"{float(margin):+.2f}{' %' if metrics.of(metric).relative else ''}"
