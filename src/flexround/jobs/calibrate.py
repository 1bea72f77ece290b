"""The job that draws the calibration samples of a seed."""

from pathlib import Path

from flexround.jobs.jobfile import Job, Plan, Planned
from flexround.settings import layout
from flexround.settings.schema import Count, Task


class CalibrateJob(Job):
    """Draw the calibration samples of a seed."""

    scale: str
    name: str
    task: Task
    samples: Count
    seed: int
    data: Path
    out: Path


def resolve(plan: Plan, task: str, samples: int, seed: int) -> Planned:
    """Plan the samples of a task and a seed."""
    scale, settings = plan.scale.name, plan.scale.tasks[task]
    inputs = {"data": layout.data_dir(scale, task)}
    values = {"scale": scale, "name": task, "task": settings, "samples": samples, "seed": seed, **inputs}
    output = layout.calibration_dir(scale, task, samples, seed)
    return Planned(CalibrateJob, output, values, inputs, (settings.module,))
