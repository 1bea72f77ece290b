"""The job that prepares a task's data."""

from pathlib import Path

from pydantic import Field

from flexround.jobs.jobfile import Job, Plan, Planned
from flexround.settings import layout
from flexround.settings.schema import TaskSpec
from flexround.settings.sources import Source


class DataJob(Job):
    """Prepare a task's data."""

    explained = frozenset({"origins"})
    name: str
    task: TaskSpec
    origins: dict[str, Source] = Field(
        description="the pinned sources it is made from; their records say what they hold"
    )
    sources: Path = Field(description="directory of all sources")


def resolve(plan: Plan, task: str) -> Planned:
    """Plan the data of a task."""
    settings = plan.scale.tasks[task]
    job = DataJob(
        name=task,
        task=settings,
        origins={name: plan.params.sources[name] for name in settings.sources},
        sources=layout.SOURCES,
        out=layout.data_dir(plan.scale.name, task),
    )
    return Planned(job, map(layout.source_file, settings.sources), (settings.module,))
