"""The job that fetches one pinned source."""

from flexround.jobs.jobfile import Job, Plan, Planned
from flexround.settings import layout
from flexround.settings.schema import Source


class FetchJob(Job):
    """Fetch one pinned source."""

    name: str
    source: Source


def resolve(plan: Plan, name: str) -> Planned:
    """Plan the download of a source. A file of the user's is read, so that an edit of it is noticed."""
    source = plan.params.sources[name]
    reads = [source.placed] if source.placed.is_file() else []
    return Planned(FetchJob(name=name, source=source, out=layout.source_file(name)), reads)
