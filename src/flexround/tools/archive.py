"""The archive of a scale's scores: evaluated runs are added in pieces, and the published tables are made from it."""

import dataclasses
import io
import itertools
import tarfile
from collections.abc import Iterator
from pathlib import Path

from flexround.io.artifacts import write_bytes, write_text
from flexround.jobs import tables as jobs
from flexround.results import cells, frames, ranking, sample_sizes, table_csv
from flexround.results.cells import Scope
from flexround.results.claims import verdicts
from flexround.results.claims.specs import Claims
from flexround.results.evaluated import METRICS, PREDICTIONS
from flexround.settings import layout, validation
from flexround.settings.layout import Run
from flexround.settings.plan import Plan

FILES = (METRICS, PREDICTIONS)  # of an evaluation


def unpack(plan: Plan, archive: Path, root: Path) -> None:
    """Write the archived evaluations of the scale's tables and figures below ``root``, which then has ``results/``."""
    wanted = {Path(layout.evaluated_dir(run)).parent for run in _runs(plan)}
    with tarfile.open(archive) as tar:
        for member in tar:
            path = Path("results", member.name)
            known = path.parent.parent in wanted and path.name in FILES
            if known and member.isfile() and (content := tar.extractfile(member)):
                write_bytes(root / path, content.read())


def add(plan: Plan, results: Path, root: Path) -> None:
    """Copy the evaluations of the scale's tables and figures from ``results``; they replace archived ones."""
    for run in _runs(plan):
        for path in (results.parent / layout.evaluated_dir(run)).parent.glob("seed*/*"):
            if path.name in FILES:
                write_bytes(root / path.relative_to(results.parent), path.read_bytes())


def pack(plan: Plan, root: Path) -> bytes:
    """Return the archive of the evaluations below ``root``."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:xz", preset=9) as tar:
        for path in sorted((root / "results" / plan.scale.name / "evaluated").rglob("seed*/*")):
            entry, content = tarfile.TarInfo(path.relative_to(root / "results").as_posix()), path.read_bytes()
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return made.getvalue()


def make(plan: Plan, root: Path) -> None:
    """Make tables, claims and ranking from the evaluations below ``root``, each table with all seeds that are there."""
    params, scale, results = plan.params, plan.scale, root / "results"
    places, ranked = {}, []
    for number, table in params.tables.items():
        seeds = _seeds(plan, number, root)
        scope = Scope(scale.name, params.recipes.recipes, max(seeds, 1), results, None if seeds else ())
        places[table.place] = verdicts.Place(cells.collect(table, scope), {})
        if seeds:
            frame = table_csv.of_cells(places[table.place].cells, {}, table, scale)
            write_text(results / scale.name / f"{table.name}.csv", frames.text(frame))
            ranked += places[table.place].cells
    runs = [run for number in params.tables for run in plan.table_runs(number)]
    frame = ranking.rank(ranked, jobs.entrants(plan, runs), scale.name)
    write_text(results / scale.name / "ranking.csv", frames.text(frame))
    sizes = sample_sizes.of(plan)
    places[f"figure {sizes.spec.number}"] = verdicts.Place(*sample_sizes.collect(sizes, scale.name, results))
    claims = validation.load(Claims, scale.claims_file)
    frame = verdicts.judged(verdicts.compare(claims.claims, places), jobs.budgets(plan), claims)
    write_text(results / scale.name / "claims.csv", frames.text(frame))


def _runs(plan: Plan) -> Iterator[Run]:
    """Yield each run of the scale's tables and figures once, with seed 0."""
    tables = (run for number in plan.params.tables for run in plan.table_runs(number))
    figures = (run for number in plan.complete_figures() for run in plan.figure_runs(number))
    yield from dict.fromkeys(dataclasses.replace(run, seed=0) for run in itertools.chain(tables, figures))


def _seeds(plan: Plan, number: int, root: Path) -> int:
    """Return how many seeds all quantized runs of a table have, from 0 on; 0 without its full precision."""
    firsts = {dataclasses.replace(run, seed=0) for run in plan.table_runs(number)}
    if not all(_evaluated(run, 0, root) for run in firsts):
        return 0
    quantized = [run for run in firsts if plan.params.recipe(run.recipe).quantized]
    return next(seed for seed in itertools.count(1) if not all(_evaluated(run, seed, root) for run in quantized))


def _evaluated(run: Run, seed: int, root: Path) -> bool:
    return (root / layout.evaluated_files(dataclasses.replace(run, seed=seed))[0]).exists()
