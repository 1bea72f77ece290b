"""What tables and figures are made of: every output of their runs, and the step that makes it."""

import dataclasses
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from flexround.settings import layout
from flexround.settings.layout import Run
from flexround.settings.plan import Plan
from flexround.settings.tables import GridShifts


class Output(NamedTuple):
    """A directory or a gate's file."""

    step: str  # data, finetune, gate, calibrate, reconstruct, choice or evaluate
    run: Run  # that it is of; a checkpoint's has full precision
    place: str

    @property
    def pair(self) -> tuple[str, str]:
        """Its task and checkpoint."""
        return self.run.task, self.run.checkpoint

    @property
    def done(self) -> bool:
        """Whether it lies there, seen from the working directory; what a manifest lists is not looked at."""
        marks = {"gate": "", "evaluate": "metrics.json"}
        return Path(self.place, marks.get(self.step, "manifest.json")).exists()


def shown(plan: Plan, tables: Iterable[int], figures: Iterable[int]) -> Iterator[tuple[str, list[Run], bool]]:
    """Yield name and runs of tables and figures, and whether the runs are evaluated for them."""
    for number in tables:
        yield plan.params.tables[number].name, plan.table_runs(number), True
    for number in figures:
        yield f"figure{number}", plan.figure_runs(number), not isinstance(plan.params.figures[number], GridShifts)


def of_run(plan: Plan, run: Run, evaluated: bool) -> Iterator[Output]:
    """Yield all that a run needs and makes, an evaluation only if it is ``evaluated``."""
    recipe = plan.params.recipe(run.recipe)
    network = dataclasses.replace(run, recipe=layout.FULL_PRECISION, seed=0)
    yield Output("data", run, layout.data_dir(run.scale, run.task))
    yield from _networks(plan, network)
    if recipe.quantized:
        yield Output("gate", network, plan.gate(run))
    if recipe.setting:
        yield Output("calibrate", run, plan.samples_dir(run))
        yield Output("reconstruct", run, layout.quantized_dir(run))
    for name in recipe.select:
        yield from of_run(plan, dataclasses.replace(run, recipe=name), evaluated=False)
    if recipe.select:
        yield Output("choice", run, layout.quantized_dir(run))
    if evaluated:
        yield Output("evaluate", run, layout.evaluated_dir(run))


def _networks(plan: Plan, network: Run) -> Iterator[Output]:
    """Yield a full-precision network, after the data it is trained on and those of the network it starts from."""
    origins = plan.origins(network.task, network.checkpoint)
    if "pretrained" in origins:
        first = plan.params.checkpoint(network.checkpoint).pretrain or ""
        yield from _networks(plan, dataclasses.replace(network, task=first))
    if "data" in origins:
        yield Output("data", network, origins["data"])
    yield Output("finetune", network, layout.checkpoint_dir(network.scale, network.task, network.checkpoint))
