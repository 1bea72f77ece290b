"""The paper's own numbers and their contradictions: ``published.csv``, ``published_figure7.csv``, ``errata.csv``."""

import csv
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from flexround.settings.layout import PARAMS

TABLES = PARAMS / "published.csv"
FIGURE7 = PARAMS / "published_figure7.csv"
ERRATA = PARAMS / "errata.csv"
COPIED = "copied row"  # kind of an erratum
DECIMALS = 2  # for every result in the paper's tables
SETTING = "value"  # replaces the metric in the paper's tables of settings


class Key(NamedTuple):
    """The identity of a published number; ``row`` counts from 1 over the whole table."""

    table: int
    row: int
    section: str
    method: str
    bits: str
    column: str
    metric: str


class Erratum(NamedTuple):
    """A line of ``errata.csv``: a number, or the first number of a row, and its mistake."""

    kind: str
    table: int
    row: int
    section: str
    method: str
    bits: str
    column: str
    metric: str
    value: str
    text: str


class Point(NamedTuple):
    """A point of the paper's figure 7: mean top-1 accuracy and its spread over seeds (percent)."""

    size: int
    method: str
    value: float
    spread: float


def load(path: Path = TABLES) -> dict[Key, float]:
    """Read the published numbers of all tables."""
    return {_key(line): float(line["value"]) for line in _lines(path)}


def load_figure7() -> list[Point]:
    """Read the paper's points of figure 7 (accuracy against calibration size)."""
    return [
        Point(int(line["size"]), line["method"], float(line["value"]), float(line["spread"]))
        for line in _lines(FIGURE7)
    ]


def errata(published: bool) -> str:
    """Return the errata as CSV; without published numbers the CSV has no lines."""
    return ERRATA.read_text(encoding="utf-8") if published else ",".join(Erratum._fields) + "\n"


def without_copies(numbers: Mapping[Key, float], mistakes: Iterable[Erratum]) -> dict[Key, float]:
    """Return the comparable published numbers: all except copied rows."""
    copied = {(erratum.table, erratum.row) for erratum in mistakes if erratum.kind == COPIED}
    return {key: value for key, value in numbers.items() if key[:2] not in copied}


def _lines(path: Path) -> Iterator[dict[str, str]]:
    """Yield the lines of a CSV without its comments, which start with # and name the source."""
    with open(path, newline="", encoding="utf-8") as file:
        yield from csv.DictReader(line for line in file if not line.startswith("#"))


def _key(line: dict[str, str]) -> Key:
    names = ("section", "method", "bits", "column", "metric")
    return Key(int(line["table"]), int(line["row"]), *(line[name] for name in names))
