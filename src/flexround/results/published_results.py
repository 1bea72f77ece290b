"""The results published in ``results/reference``, shown where nothing has been computed."""

import csv
from pathlib import Path
from typing import Any

from flexround.io.artifacts import read_json
from flexround.settings.layout import REFERENCE
from flexround.settings.schema import Scale

DIRECTORY = Path(REFERENCE)
SHARED = ("claims.csv", "errata.csv", "ranking.csv")  # of a scale with its own series of tables
SUMMARY = "metrics.json"  # shown by DVC; made from the published tables only
TOLERANCES = "tolerances.csv"  # for the published tables, read by `make regress`
ARCHIVE = "evaluated.tar.xz"  # metrics and scores of each run of a scale whose tables are published in pieces
MADE = "made.json"  # commit, date and machine of each published table


def published_name(scale: Scale, name: str) -> str:
    """Return the reference's name for a results file; other series than the paper's begin each file's name."""
    series = scale.shows.tables
    return name if series == "table" or name.startswith(series) else f"{series}-{name}"


def find(root: Path, scale: Scale, name: str) -> tuple[Path, bool]:
    """Return the CSV in ``results/SCALE`` or, if it wasn't computed here, the published CSV; and whether it is that."""
    computed = root / "results" / scale.name / name
    published = None if computed.exists() else find_published(root, scale, name)
    return published or computed, published is not None


def made(root: Path, scale: Scale) -> dict[str, Any]:
    """Return the origin of each published table of a scale, by its name: command, dates, commits, machines."""
    path = root / DIRECTORY / published_name(scale, MADE)
    return read_json(path) if path.exists() else {}


def find_published(root: Path, scale: Scale, name: str) -> Path | None:
    """Return the published CSV of a scale; None if it is missing or belongs to another scale."""
    path = root / DIRECTORY / published_name(scale, name)
    if not path.exists():
        return None
    with open(path, newline="") as file:
        first = next(csv.DictReader(file), {"scale": ""})
    return path if first.get("scale", scale.name) == scale.name else None
