"""All results as one HTML page that works offline, with the origin of each cell."""

import base64
from collections.abc import Iterable
from pathlib import Path

from flexround import metrics
from flexround.results import frames, published_results, ranking
from flexround.results.claims import verdicts
from flexround.results.claims.verdicts import FAILS, NOT_RUN, JudgedClaim
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


def render(root: Path, plan: Plan, own: str | None = None) -> str:
    """Return the page of all results in ``root``/results.

    A missing result is replaced by the published result, with a note, or listed as not run. ``own`` is the user's file
    of own rows, which the tables include.
    """
    directory = root / "results" / plan.scale.name
    tables = [table for _, table in sorted(plan.params.tables.items())]
    standings = [standing(table, *published_results.find(root, plan.scale, f"{table.name}.csv")) for table in tables]
    runs = {run for s in standings for entry in s.entries for run in origins.evaluated(entry, root)}
    shared = [published_results.find(root, plan.scale, name) for name in published_results.SHARED]
    (claims_csv, claims_published), (errata_csv, _), (ranking_csv, ranking_published) = shared
    ranked = frames.load(ranking_csv, ranking.Line)
    claims = verdicts.load(claims_csv, plan.scale)
    leads = verdicts.against_adaround(claims)
    figures = {number: _image(directory / f"figure{number}.png") for number in sorted(plan.figures)}
    found = origins.sheets(root, plan, standings, own)
    return html.HTML.get_template("report.html").render(
        scale=plan.scale,
        given=user_rows.given_as(plan.scale.name, root),
        standings=standings,
        complete=plan.complete_tables(),
        families=list(dict.fromkeys(s.family for s in standings)),
        figures=figures,
        published=sum(s.published for s in standings),
        made=published_results.made(root, plan.scale),
        claims=claims,
        claims_published=claims_published,
        comparisons=comparisons,
        comparisons_header=COMPARISONS,
        found=overview.sentences(verdicts.total(claims), leads, standings, _others(directory, runs)),
        first=[pictures.of_leads(leads, plan.scale.name), *pictures.of_budgets(plan, root)],
        plots=[pictures.of_bits(standings, plan), pictures.of_sizes(plan, root)],
        ranking=[line[1:-1] for line in ranked],
        ranking_families=[line.group if line.by == ranking.FAMILY else "" for line in ranked],
        ranking_published=ranking_published,
        errata_header=[name.capitalize() for name in Erratum._fields],
        errata=[line._replace(metric=words.of(line.metric)) for line in frames.load(errata_csv, Erratum)],
        status=_status(standings, plan.scale.comparable),
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


def _image(path: Path) -> str | None:
    return "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode() if path.exists() else None


def comparisons(claim: JudgedClaim) -> list[tuple[object, ...]]:
    """Return a row for each comparison of a claim, see ``COMPARISONS``."""
    return [
        (
            line.place.capitalize(),
            words.listed(line.section, line.column, line.bits, words.of(line.metric)),
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


def _signed(margin: str, metric: str) -> str:
    return "—" if not margin else f"{float(margin):+.2f}{' %' if metrics.of(metric).relative else ''}"
