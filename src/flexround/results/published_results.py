"""What is published with this repository in ``results/reference``, for where nothing has been computed."""

import csv
from pathlib import Path
from typing import Any, NamedTuple

from flexround.io.artifacts import read_json
from flexround.settings.layout import REFERENCE
from flexround.settings.schema import Scale

DIRECTORY = Path(REFERENCE)
SHARED = ("claims.csv", "errata.csv", "ranking.csv")  # of a scale, whose tables are a series
SUMMARY = "metrics.json"  # what DVC shows; made of the published tables alone
TOLERANCES = "tolerances.csv"  # of the published tables, for `make regress`
MADE = "made.json"  # at which commit, when and on which machine each published table was made


class Found(NamedTuple):
    """A file of a scale's results, and whether it is the published one."""

    path: Path
    published: bool


def published_name(scale: Scale, name: str) -> str:
    """Return the name of a file of results in the reference: tables are named by their series, the rest is here."""
    series = scale.shows.tables
    return name if series == "table" or name not in (*SHARED, SUMMARY, TOLERANCES, MADE) else f"{series}-{name}"


def find(root: Path, scale: Scale, name: str) -> Found:
    """Return a CSV of ``results/SCALE`` that was computed here, else the published one; it may be neither."""
    computed = root / "results" / scale.name / name
    published = None if computed.exists() else find_published(root, scale, name)
    return Found(published or computed, published is not None)


def made(root: Path, scale: Scale) -> dict[str, Any]:
    """Return how each published table of a scale was made, by its name: command, dates, commits, machines."""
    path = root / DIRECTORY / published_name(scale, MADE)
    return read_json(path) if path.exists() else {}


def find_published(root: Path, scale: Scale, name: str) -> Path | None:
    """Return the published CSV of a scale; None if there is none, or it is another scale's."""
    path = root / DIRECTORY / published_name(scale, name)
    if not path.exists():
        return None
    with open(path, newline="") as file:
        first = next(csv.DictReader(file), {"scale": ""})
    return path if first.get("scale", scale.name) == scale.name else None
