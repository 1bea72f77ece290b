"""The job that fetches one pinned source."""

import hashlib
from pathlib import Path
from typing import Any

from pydantic import Field

from flexround.io import sources
from flexround.jobs.jobfile import Job, Plan, Planned
from flexround.settings import layout
from flexround.settings.sources import Source


class FetchJob(Job):
    """Fetch one pinned source."""

    explained = frozenset({"source"})
    name: str
    source: Source
    pins: dict[str, Any] = Field(
        description="what of the source decides its content: not the licence, nor the address of a pinned one"
    )
    stamp: str | None = Field(
        None, description="names, sizes and times of the user's own files: an edit makes another job"
    )


def resolve(plan: Plan, name: str) -> Planned:
    """Plan the download of a source."""
    source = plan.params.sources[name]
    stamp = _stamp(source.placed) if source.placed else None
    address = set() if source.inside or source.placed or not source.sha256 else {"location", "path"}
    pins = source.model_dump(mode="json", exclude={"licence", *address})
    return Planned(FetchJob(name=name, source=source, pins=pins, stamp=stamp, out=layout.source_file(name)))


def _stamp(place: Path) -> str:
    """Return what changes when a file, or one in a folder, is edited, added or removed; nothing is read."""
    found = [place] if place.is_file() else sources.files(place)
    facts = ((path.relative_to(place).as_posix(), path.stat()) for path in found)
    text = "".join(f"{name} {found.st_size} {found.st_mtime_ns}\n" for name, found in facts)
    return hashlib.sha256(text.encode()).hexdigest()
