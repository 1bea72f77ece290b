"""The job that fetches one pinned source."""

from flexround.jobs.jobfile import Job, Plan, Planned
from flexround.settings import layout
from flexround.settings.schema import Source


class FetchJob(Job):
    """Fetch one pinned source."""

    name: str
    source: Source


def resolve(plan: Plan, name: str) -> Planned:
    """Plan the download of a source."""
    return Planned(FetchJob(name=name, source=plan.params.sources[name], out=layout.source_file(name)))
