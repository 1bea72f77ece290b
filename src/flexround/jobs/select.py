"""The job that takes the best of several quantized networks."""

import dataclasses
from pathlib import Path

from pydantic import Field

from flexround.jobs.jobfile import MeasuredJob, Plan, Planned, network, network_code
from flexround.settings import layout
from flexround.settings.layout import Run


class SelectJob(MeasuredJob):
    """Choose the best of several quantized networks."""

    run: Run
    networks: dict[str, Path] = Field(description="recipe -> directory")


def resolve(plan: Plan, run: Run) -> Planned:
    """Plan the choice among the networks of a run."""
    plan.params.check_fit(run)
    names = plan.params.recipe(run.recipe).select
    job = SelectJob(
        **network(plan, run.task, run.checkpoint, evaluated=True),
        run=run,
        networks={name: layout.quantized_dir(dataclasses.replace(run, recipe=name)) for name in names},
        data=layout.data_dir(run.scale, run.task),
        out=layout.quantized_dir(run),
    )
    return Planned(job, [job.data, *job.networks.values()], network_code(plan, run.task, run.checkpoint))
