"""The job that prepares a task's data."""

from pathlib import Path

from pydantic import Field

from flexround.jobs.jobfile import Job, Plan, Planned
from flexround.settings import layout
from flexround.settings.schema import TaskSpec


class DataJob(Job):
    """Prepare a task's data."""

    name: str
    task: TaskSpec
    sources: Path = Field(description="directory of all sources")


def resolve(plan: Plan, task: str) -> Planned:
    """Plan the data of a task."""
    settings = plan.scale.tasks[task]
    job = DataJob(name=task, task=settings, sources=layout.SOURCES, out=layout.data_dir(plan.scale.name, task))
    return Planned(job, map(layout.source_file, settings.sources), (settings.module,))
