"""The job that judges the paper's claims."""

import dataclasses
from pathlib import Path

from flexround.jobs import shared
from flexround.jobs.jobfile import Job, Plan, Planned
from flexround.jobs.shared import RESULTS, Numbers, Sizes
from flexround.results import paper_numbers
from flexround.results.claims import specs
from flexround.results.claims.specs import Claims
from flexround.results.paper_numbers import Key
from flexround.settings.layout import PARAMS, Run
from flexround.settings.schema import Count, Recipe, ScaleFacts
from flexround.settings.tables import Table


class ClaimsJob(Job):
    """Judge the paper's claims."""

    tables: tuple[Table, ...]
    scale: ScaleFacts
    seeds: dict[str, Count]
    selected: tuple[str, ...] | None = None
    recipes: dict[str, Recipe]
    numbers: Numbers
    bold: tuple[Key, ...]
    budgets: dict[str, int]
    claims: Claims
    sizes: Sizes
    evaluated: Path = RESULTS
    out: Path


def resolve(plan: Plan) -> Planned:
    """Plan the judgement of all claims by all complete tables and figure 7."""
    tables = tuple(table for table in plan.params.tables.values() if table.groups)
    templates, out = shared.templates("claims"), RESULTS / plan.scale.name
    values = {
        "tables": tables,
        "scale": shared.facts(plan),
        "seeds": shared.seeds(plan, tables),
        "selected": plan.selected,
        "recipes": shared.recipes(plan, tables),
        "numbers": shared.numbers(plan),
        "bold": tuple(sorted(paper_numbers.load_bold())) if plan.scale.shows.published else (),
        "budgets": budgets(plan),
        "claims": specs.load(PARAMS / plan.scale.shows.claims),
        "sizes": shared.sizes(plan),
        "out": out,
    }
    figure = plan.params.figures.sample_size.number
    complete = [number for number in plan.complete_tables() if plan.params.tables[number].groups]
    runs = [run for table in complete for run in plan.table_runs(table)]
    runs += plan.figure_runs(figure) if figure in plan.complete_figures() else []
    inputs = templates | shared.evaluated(runs)
    return Planned(ClaimsJob, str(out / "claims.csv"), values, inputs, files=tuple(templates.values()))


def budgets(plan: Plan) -> dict[str, int]:
    """Return a block's iterations in each run that claims may compare; what is chosen has its candidates' sum."""
    runs = [run for number in plan.complete_tables() for run in plan.table_runs(number)]
    runs += [run for number in plan.complete_figures() for run in plan.figure_runs(number)]
    quantized = (run for run in runs if plan.params.recipe(run.recipe).quantized)
    return {specs.budget_key(run): _iterations(plan, run) for run in quantized}


def _iterations(plan: Plan, run: Run) -> int:
    """Return the iterations of a block for the weights, of all recipes that a run is the best of."""
    tried = plan.params.recipe(run.recipe).select or (run.recipe,)
    return sum(plan.hyper(dataclasses.replace(run, recipe=recipe))[0].iters for recipe in tried)
