"""The job that fetches one pinned source."""

from pathlib import Path

from pydantic import Field

from flexround.jobs.jobfile import Job, Plan, Planned
from flexround.settings import layout
from flexround.settings.schema import Source


class FetchJob(Job):
    """Fetch one pinned source."""

    name: str
    source: Source
    out: Path = Field(description="directory of all sources")


def resolve(plan: Plan, name: str) -> Planned:
    """Plan the download of a source."""
    values = {"name": name, "source": plan.params.sources[name], "out": layout.SOURCES}
    return Planned(FetchJob, layout.source_file(name), values, {})
