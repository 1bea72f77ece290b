"""The job that makes one table."""

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from flexround.errors import SettingsError, look_up
from flexround.jobs import shared
from flexround.jobs.jobfile import Plan, Planned
from flexround.jobs.shared import RESULTS, ShowingJob
from flexround.settings.checks import check_metrics
from flexround.settings.layout import Run
from flexround.settings.tables import Setting, Table


class TabulateJob(ShowingJob):
    """Make one table."""

    table: Table
    settings: tuple[float, ...] = Field(description="cells of a table of settings")


def resolve(plan: Plan, number: int) -> Planned:
    """Plan a table, of its runs or of settings; SettingsError if a task gives no metric of a cell."""
    table = plan.params.tables[number]
    if errors := check_metrics(plan.params, table, table.file):
        raise SettingsError("\n".join(errors))
    out = RESULTS / plan.scale.name / f"{table.name}.csv"
    job = TabulateJob(table=table, settings=settings_of(plan, table), out=out, **shared.showing(plan, [table]))
    runs = [] if table.settings else plan.table_runs(number)
    return Planned(job, shared.evaluated(runs), files=shared.templates("table"))


def settings_of(plan: Plan, table: Table) -> tuple[float, ...]:
    """Return what the pipeline uses for each cell of a settings table, in the order of ``table.settings``.

    Raises:
        SettingsError: the scale lacks a task, checkpoint or setting, or those that share a cell differ.
    """
    return tuple(_agreed(table, setting, plan) for setting in table.settings)


def _agreed(table: Table, setting: Setting, plan: Plan) -> float:
    """Return the value that all tasks and checkpoints of a cell share."""
    tasks = [setting.task] if setting.task else table.tasks
    pairs = [(task, checkpoint) for task in tasks for checkpoint in setting.checkpoints]
    values = {pair: _value(setting, *pair, plan) for pair in pairs}
    first = pairs[0]
    for pair, value in values.items():
        if value != values[first]:
            raise SettingsError(
                f"table {table.number} prints one {setting.setting} for all: scale {plan.scale.name} has "
                f"{values[first]} for {'/'.join(first)}, but {value} for {'/'.join(pair)}; make them equal"
            )
    return values[first]


def _value(setting: Setting, task: str, checkpoint: str, plan: Plan) -> float:
    scale, (kind, _, key) = plan.scale, setting.setting.partition(".")
    options = look_up(f"scale {scale.name}: task", scale.tasks, task).options
    plan.params.checkpoint(checkpoint)
    known: Mapping[str, Any]
    if kind == "task":
        where, known = f"tasks.{task}.options", options
    elif setting.recipe is None:
        where, known = f"train: {task}/{checkpoint}", plan.params.train(task, checkpoint) or {}
    else:
        run = Run(scale.name, task, checkpoint, setting.recipe, 0)
        where, known = f"hyper: {task}/{checkpoint}/{setting.recipe}", plan.hyper(run)[0].model_dump()
    if not isinstance(known.get(key), int | float):
        raise SettingsError(
            f"scale {scale.name}: {where}: {key} = {known.get(key)!r}: write a number, the task's table shows it"
        )
    return known[key]
