"""Which tables and figures each directory of results serves: what verification and storage ask. No torch here."""

import dataclasses
from collections.abc import Iterator

from flexround.settings import layout
from flexround.settings.layout import Run
from flexround.settings.plan import Plan


def served(plan: Plan) -> dict[str, list[str]]:
    """Return directory or gate -> ``table3``, ``figure7``, ... that are made from it, of what the scale can make."""
    products: dict[str, list[str]] = {}
    for name, runs, evaluated in _products(plan):
        directories = {directory for run in runs for directory in _directories(plan, run, evaluated)}
        for directory in sorted(directories):
            products.setdefault(directory, []).append(name)
    return products


def _products(plan: Plan) -> Iterator[tuple[str, list[Run], bool]]:
    """Yield each table and figure with its runs, and whether these are evaluated."""
    for number in plan.complete_tables():
        yield plan.params.tables[number].name, plan.table_runs(number), True
    for number in plan.complete_figures():
        yield f"figure{number}", plan.figure_runs(number), number not in plan.params.figures.shifts


def _directories(plan: Plan, run: Run, evaluated: bool) -> Iterator[str]:
    """Yield everything that a run is made from, and itself."""
    recipe = plan.params.recipe(run.recipe)
    yield layout.data_dir(run.scale, run.task)
    yield from _network(plan, run.task, run.checkpoint)
    if evaluated:
        yield layout.evaluated_dir(run)
    if recipe.quantized:
        yield layout.quantized_dir(run)
        yield plan.gate(run)
    if recipe.setting:
        yield plan.samples_dir(run)
    for name in recipe.select:
        yield from _directories(plan, dataclasses.replace(run, recipe=name), evaluated=False)


def _network(plan: Plan, task: str, checkpoint: str) -> Iterator[str]:
    """Yield a full-precision network, the data it is trained on, and those of the network it starts from."""
    yield layout.checkpoint_dir(plan.scale.name, task, checkpoint)
    origins = plan.origins(task, checkpoint)
    if "data" in origins:
        yield origins["data"]
    if "pretrained" in origins:
        yield from _network(plan, plan.params.checkpoint(checkpoint).pretrain or "", checkpoint)
