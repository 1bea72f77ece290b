"""The job that judges the paper's claims."""

import dataclasses

from pydantic import Field

from flexround.jobs import shared
from flexround.jobs.jobfile import Plan, Planned
from flexround.jobs.shared import RESULTS, ShowingJob
from flexround.results import sample_sizes
from flexround.results.claims import errata
from flexround.results.claims.specs import Claims, budget_key
from flexround.results.sample_sizes import Sizes
from flexround.settings import validation
from flexround.settings.layout import Run
from flexround.settings.tables import Table


class ClaimsJob(ShowingJob):
    """Judge the paper's claims."""

    explained = frozenset({"file"})
    tables: tuple[Table, ...]
    errata: str = Field(description="of the published numbers, as CSV")
    budgets: dict[str, int]
    claims: Claims
    file: str = Field(description="of the claims")
    sizes: Sizes
    left_out: tuple[str, ...] = Field(description="places whose cells are not made")


def resolve(plan: Plan) -> Planned:
    """Plan the judgement of all claims by all complete tables and figure 7."""
    tables = tuple(table for table in plan.params.tables.values() if table.groups)
    figure, complete = plan.params.figures.sample_size.number, plan.complete_tables()
    left_out = [table.place for table in tables if table.number not in complete]
    left_out += [f"figure {figure}"] if figure not in plan.complete_figures() else []
    job = ClaimsJob(
        **shared.showing(plan, tables),
        tables=tables,
        errata=errata.text(plan.scale.shows.published),
        budgets=budgets(plan),
        claims=validation.load(Claims, plan.scale.claims_file),
        file=plan.scale.claims_file.name,
        sizes=sample_sizes.of(plan),
        left_out=tuple(left_out),
        out=RESULTS / plan.scale.name / "claims.csv",
    )
    runs = [run for number in complete for run in plan.table_runs(number)]
    runs += plan.figure_runs(figure) if figure in plan.complete_figures() else []
    return Planned(job, shared.evaluated(runs), files=shared.templates("claims"))


def budgets(plan: Plan) -> dict[str, int]:
    """Return a block's iterations in each run that claims may compare; what is chosen has its candidates' sum."""
    runs = [run for number in plan.complete_tables() for run in plan.table_runs(number)]
    runs += [run for number in plan.complete_figures() for run in plan.figure_runs(number)]
    quantized = (run for run in runs if plan.params.recipe(run.recipe).quantized)
    return {budget_key(run): _iterations(plan, run) for run in quantized}


def _iterations(plan: Plan, run: Run) -> int:
    """Return the iterations of a block for the weights, of all recipes that a run is the best of."""
    tried = plan.params.recipe(run.recipe).select or (run.recipe,)
    return sum(plan.hyper(dataclasses.replace(run, recipe=recipe))[0].iters for recipe in tried)
