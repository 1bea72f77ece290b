"""The job that takes the best of several quantized networks."""

import dataclasses
from pathlib import Path

from pydantic import Field

from flexround.jobs.jobfile import MeasuredJob, Plan, Planned, network, network_code, numbered
from flexround.settings import layout
from flexround.settings.layout import Run


class SelectJob(MeasuredJob):
    """Choose the best of several quantized networks."""

    run: Run
    networks: dict[str, Path] = Field(description="recipe -> directory")


def resolve(plan: Plan, run: Run) -> Planned:
    """Plan the choice among the networks of a run."""
    data, names = layout.data_dir(run.scale, run.task), plan.params.recipe(run.recipe).select
    networks = {name: layout.quantized_dir(dataclasses.replace(run, recipe=name)) for name in names}
    known = network(plan, run.task, run.checkpoint, evaluated=True)
    values = known | {"run": run, "networks": networks, "data": data}
    inputs = {"data": data} | numbered("of", networks.values())
    return Planned(SelectJob, layout.quantized_dir(run), values, inputs, network_code(plan, run.task, run.checkpoint))
