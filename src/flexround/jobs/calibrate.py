"""The job that draws the calibration samples of a seed."""

from pathlib import Path

from flexround.jobs.jobfile import Job, Plan, Planned
from flexround.settings import layout
from flexround.settings.schema import Count, TaskSpec


class CalibrateJob(Job):
    """Draw the calibration samples of a seed."""

    name: str
    task: TaskSpec
    samples: Count
    seed: int
    data: Path


def resolve(plan: Plan, task: str, samples: int, seed: int) -> Planned:
    """Plan the samples of a task and a seed."""
    scale, settings = plan.scale.name, plan.scale.tasks[task]
    data, out = layout.data_dir(scale, task), layout.calibration_dir(scale, task, samples, seed)
    job = CalibrateJob(name=task, task=settings, samples=samples, seed=seed, data=data, out=out)
    return Planned(job, [data], (settings.module,))
