"""The job that prepares a task's data."""

from pathlib import Path

from pydantic import Field

from flexround.jobs.jobfile import Job, Plan, Planned, numbered
from flexround.settings import layout
from flexround.settings.schema import Task


class DataJob(Job):
    """Prepare a task's data."""

    scale: str
    name: str
    task: Task
    sources: Path = Field(description="directory of all sources")
    out: Path


def resolve(plan: Plan, task: str) -> Planned:
    """Plan the data of a task."""
    settings = plan.scale.tasks[task]
    values = {"scale": plan.scale.name, "name": task, "task": settings, "sources": layout.SOURCES}
    sources = numbered("source", map(layout.source_file, settings.sources))
    return Planned(DataJob, layout.data_dir(plan.scale.name, task), values, sources, (settings.module,))
