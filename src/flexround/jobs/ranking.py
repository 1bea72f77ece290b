"""The job that ranks the roundings of a scale."""

import json

from pydantic import Field

from flexround.jobs import shared
from flexround.jobs.jobfile import Plan, Planned
from flexround.jobs.shared import RESULTS, ShowingJob
from flexround.results.claims.specs import budget_key
from flexround.settings.layout import Run
from flexround.settings.tables import Table


class RankingJob(ShowingJob):
    """Rank the roundings."""

    tables: tuple[Table, ...]
    entrants: dict[str, tuple[str, str, str]] = Field(description="what runs take part as, see results.ranking.Entrant")


def resolve(plan: Plan) -> Planned:
    """Plan the ranking by all complete tables of the scale."""
    numbers = [number for number in plan.complete_tables() if plan.params.tables[number].groups]
    tables = tuple(plan.params.tables[number] for number in numbers)
    runs = [run for number in numbers for run in plan.table_runs(number)]
    facts = shared.showing(plan, tables) | {"tables": tables, "entrants": entrants(plan, runs)}
    return Planned(RankingJob(**facts, out=RESULTS / plan.scale.name / "ranking.csv"), shared.evaluated(runs))


def entrants(plan: Plan, runs: list[Run]) -> dict[str, tuple[str, str, str]]:
    """Return what each quantized run takes part as, by ``budget_key``; the best of several recipes takes no part.

    Of two recipes of one method in a cell, the later one in ``params/recipes.yaml``, which a user's own follow, is a
    method with its recipe's name.
    """
    found: dict[str, tuple[str, str, str]] = {}
    order = list(plan.params.recipes.recipes)
    for run in sorted(runs, key=lambda run: order.index(run.recipe)):
        recipe = plan.params.recipe(run.recipe)
        if recipe.rounding is None or budget_key(run) in found:
            continue
        bits = f"W{recipe.w_bits}" + (f"A{recipe.a_bits}" if recipe.a_bits else "")
        setting = f"{recipe.setting} {bits}"
        hyper = plan.hyper(run)[0]
        equal = hyper.grid(recipe) | {"samples": hyper.samples, "preprocess": recipe.preprocess}
        place = f"{run.task}/{run.checkpoint}, {setting}, {json.dumps(equal)}"
        name = plan.params.recipes.roundings.get(recipe.rounding, recipe.rounding).rpartition(":")[2]
        method = ", ".join([name, *(f"{key}={value}" for key, value in recipe.options.items())])
        if (method, setting, place) in found.values():
            method = run.recipe.replace(f"-{bits.lower()}", "")
        found[budget_key(run)] = method, setting, place
    return found
