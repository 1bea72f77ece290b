"""The jobs that show results: fields of each job, and a planning function named as its stage."""

import dataclasses
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from flexround.errors import SettingsError
from flexround.jobs.jobfile import Job, Planned, network
from flexround.results import paper_numbers, sample_sizes
from flexround.results.cells import Scope
from flexround.results.claims.specs import AT_EQUAL, Claims, budget_key
from flexround.results.paper_numbers import Key
from flexround.results.sample_sizes import Sizes
from flexround.settings import layout, validation
from flexround.settings.layout import Run
from flexround.settings.plan import Plan
from flexround.settings.schema import Checkpoint, Count, Positive, Recipe, ScaleFacts, Strict, TaskSpec
from flexround.settings.tables import Budgets, ByBits, Figure, GridShifts, Panel, SampleSize, Setting, Table

RESULTS = Path("results")


class ShowingJob(Job):
    """The fields of a job that compares the evaluated runs of tables with the published numbers."""

    scale: ScaleFacts
    seeds: dict[str, Count] = Field(description="of a complete quantized cell, by task")
    selected: tuple[str, ...] | None = Field(None, description="checkpoints whose cells are made; none: all")
    recipes: dict[str, Recipe] = Field(description="of the rows")
    numbers: tuple[tuple[Key, float], ...] = Field(description="that the paper prints in these tables")

    @property
    def scope(self) -> Scope:
        """The evaluated runs from which the tables' cells are collected."""
        return Scope(self.scale.name, self.recipes, self.seeds, RESULTS, self.selected)


def showing(plan: Plan, tables: Sequence[Table]) -> dict[str, Any]:
    """Return the fields of a :class:`ShowingJob` for tables."""
    printed = paper_numbers.load() if plan.scale.shows.published else {}
    wanted = {table.number for table in tables}
    return {
        "scale": plan.scale,
        "seeds": {task: plan.seeds(task) for table in tables for task, _ in table.pairs()},
        "selected": plan.selected,
        "recipes": {row.recipe: plan.params.recipe(row.recipe) for table in tables for row in table.rows()},
        "numbers": tuple((key, value) for key, value in printed.items() if key.table in wanted),
    }


def evaluated(runs: Iterable[Run]) -> list[str]:
    """Return the files of the runs' evaluations, each once."""
    return list(dict.fromkeys(file for run in runs for file in layout.evaluated_files(run)))


class TabulateJob(ShowingJob):
    """Write one table."""

    table: Table
    settings: tuple[float, ...] = Field(description="cells of a table of settings")


def tabulate(plan: Plan, number: int) -> Planned:
    """Plan a table, from its runs or from settings; SettingsError if a task lacks the metric of a cell."""
    table = plan.params.tables[number]
    for task, metric in dict.fromkeys((cell.task, metric) for cell in table.cells() for metric in cell.metrics):
        plan.params.check_metric(table.file, task, metric)
    out = RESULTS / plan.scale.name / f"{table.name}.csv"
    job = TabulateJob(table=table, settings=settings_of(plan, table), out=out, **showing(plan, [table]))
    runs = [] if table.settings else plan.table_runs(number)
    return Planned(job, evaluated(runs))


def settings_of(plan: Plan, table: Table) -> tuple[float, ...]:
    """Return the pipeline's value for each cell of a settings table, in the order of ``table.settings``.

    Raises:
        SettingsError: the tasks and checkpoints of a cell differ.
    """
    shared = []
    for setting in table.settings:
        tasks = [setting.task] if setting.task else table.tasks
        pairs = [(task, checkpoint) for task in tasks for checkpoint in setting.checkpoints]
        values = {"/".join(pair): _value(setting, *pair, plan) for pair in pairs}
        if len({*values.values()}) > 1:
            raise SettingsError(f"table {table.number} prints one {setting.setting} for all: {values}; make them equal")
        shared.append(next(iter(values.values())))
    return tuple(shared)


def _value(setting: Setting, task: str, checkpoint: str, plan: Plan) -> float:
    scale, (kind, _, key) = plan.scale, setting.setting.partition(".")
    if kind == "task":
        return scale.tasks[task].options[key]
    if setting.recipe is None:
        return (plan.params.train(task, checkpoint) or {})[key]
    return getattr(plan.hyper(Run(scale.name, task, checkpoint, setting.recipe, 0))[0], key)


class SummaryJob(Job):
    """Sum up the tables."""

    tables: tuple[Path, ...]


def summary(plan: Plan) -> Planned:
    """Plan the summary of all complete tables of the scale."""
    out = f"results/{plan.scale.name}"
    tables = [f"{out}/{plan.params.tables[number].name}.csv" for number in plan.complete_tables()]
    return Planned(SummaryJob(tables=tables, out=f"{out}/metrics.json"), tables)


class Shift(Strict):
    """One weight whose grid shifts are drawn, and the directories of its networks."""

    panel: Panel
    task: TaskSpec
    checkpoint: Checkpoint
    steps: tuple[str, ...] = Field(description="surgery before quantization")
    weights: Path
    quantized: Path


class FigureJob(ShowingJob):
    """Draw one figure."""

    spec: Figure = Field(discriminator="kind")
    large_weight: Positive = Field(description="that parts the histograms beside grid shifts")
    shifts: tuple[Shift, ...]
    sizes: Sizes | None
    by_bits: Table | None


def figure(plan: Plan, number: int) -> Planned:
    """Plan a figure from its networks or from its evaluations."""
    spec = plan.params.figures[number]
    shifts = [_shift(plan, panel) for panel in spec.panels] if isinstance(spec, GridShifts) else []
    table = plan.params.tables[spec.table] if isinstance(spec, ByBits) else None
    job = FigureJob(
        **showing(plan, [table] if table else []),
        spec=spec,
        large_weight=plan.scale.figures.large_weight,
        shifts=shifts,
        sizes=sample_sizes.of(plan) if isinstance(spec, SampleSize) else None,
        by_bits=table,
        out=RESULTS / plan.scale.name / f"figure{number}.pdf",
    )
    networks = [network for shift in shifts for network in (shift.weights, shift.quantized)]
    reads: list[str | Path] = [*(networks or evaluated(plan.figure_runs(number)))]
    reads += [layout.quantized_dir(run) for run in plan.figure_runs(number)] if isinstance(spec, Budgets) else []
    models = [shift.checkpoint.model for shift in shifts]
    code = {target for model in models for target in (model.factory, model.equalization) if target}
    code |= {shift.task.module for shift in shifts}
    return Planned(job, reads, tuple(sorted(code)))


def _shift(plan: Plan, panel: Panel) -> Shift:
    run = Run(plan.scale.name, panel.task, panel.checkpoint, panel.recipe, 0)
    known = network(plan, panel.task, panel.checkpoint)
    return Shift(
        panel=panel,
        task=known["task"],
        checkpoint=known["checkpoint"],
        steps=plan.params.recipe(panel.recipe).preprocess,
        weights=Path(layout.checkpoint_dir(run.scale, run.task, run.checkpoint)),
        quantized=Path(layout.quantized_dir(run)),
    )


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


def claims(plan: Plan) -> Planned:
    """Plan the judgement of all claims from all complete tables and figure 7."""
    tables = tuple(table for table in plan.params.tables.values() if table.groups)
    figure, complete = plan.params.figures.sample_size.number, plan.complete_tables()
    left_out = [table.place for table in tables if table.number not in complete]
    left_out += [f"figure {figure}"] if figure not in plan.complete_figures() else []
    job = ClaimsJob(
        **showing(plan, tables),
        tables=tables,
        errata=paper_numbers.errata(plan.scale.shows.published),
        budgets=budgets(plan),
        claims=validation.load(Claims, plan.scale.claims_file),
        file=plan.scale.claims_file.name,
        sizes=sample_sizes.of(plan),
        left_out=tuple(left_out),
        out=RESULTS / plan.scale.name / "claims.csv",
    )
    runs = [run for number in complete for run in plan.table_runs(number)]
    runs += plan.figure_runs(figure) if figure in plan.complete_figures() else []
    return Planned(job, evaluated(runs))


def budgets(plan: Plan) -> dict[str, int]:
    """Return a block's iterations in each run that claims may compare; a choice has the sum of its candidates."""
    runs = [run for number in plan.complete_tables() for run in plan.table_runs(number)]
    runs += [run for number in plan.complete_figures() for run in plan.figure_runs(number)]
    found = {}
    for run in (run for run in runs if plan.params.recipe(run.recipe).quantized):
        tried = plan.params.recipe(run.recipe).select or (run.recipe,)
        found[budget_key(run)] = sum(plan.hyper(dataclasses.replace(run, recipe=name))[0].iters for name in tried)
    return found


class RankingJob(ShowingJob):
    """Rank the roundings."""

    tables: tuple[Table, ...]
    entrants: dict[str, tuple[str, str, str]] = Field(description="what runs take part as, see results.ranking.Entrant")


def ranking(plan: Plan) -> Planned:
    """Plan the ranking from all complete tables of the scale."""
    numbers = [number for number in plan.complete_tables() if plan.params.tables[number].groups]
    tables = tuple(plan.params.tables[number] for number in numbers)
    runs = [run for number in numbers for run in plan.table_runs(number)]
    facts = showing(plan, tables) | {"tables": tables, "entrants": entrants(plan, runs)}
    return Planned(RankingJob(**facts, out=RESULTS / plan.scale.name / "ranking.csv"), evaluated(runs))


def entrants(plan: Plan, runs: list[Run]) -> dict[str, tuple[str, str, str]]:
    """Return each quantized run's method, setting and place in the ranking, by ``budget_key``; choices take no part.

    If two recipes of a cell have the same method, the later one becomes a method with the recipe's name. The order is
    that of ``params/recipes.yaml``, then of the user's own recipes; runs at equal iterations come last.
    """
    found: dict[str, tuple[str, str, str]] = {}
    order = list(plan.params.recipes.recipes)
    for run in sorted(runs, key=lambda run: (run.recipe.endswith(AT_EQUAL), order.index(run.recipe))):
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
