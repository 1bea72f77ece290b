"""The paper's own numbers: ``params/published.csv`` and ``params/published_figure7.csv``."""

from pathlib import Path
from typing import NamedTuple

from flexround.errors import InputError
from flexround.results import typed_csv
from flexround.settings.layout import PARAMS

TABLES = PARAMS / "published.csv"
FIGURE7 = PARAMS / "published_figure7.csv"
DECIMALS = 2  # of every result in the paper's tables
SETTING = "value"  # stands for the metric in its tables of settings
RESTORE = "restore the file from git"


class Key(NamedTuple):
    """The identity of a published number; ``row`` counts from 1 over the whole table."""

    table: int
    row: int
    section: str
    method: str
    bits: str
    column: str
    metric: str


class Published(NamedTuple):
    """A line of ``params/published.csv``: a number of the paper, and whether it is printed in bold."""

    key: Key
    value: float
    bold: bool


class Point(NamedTuple):
    """A point of the paper's figure 7: mean top-1 accuracy and its spread over seeds (percent)."""

    size: int
    method: str
    value: float
    spread: float


def load(path: Path = TABLES) -> dict[Key, float]:
    """Read the published numbers of all tables.

    Raises:
        InputError: the file is missing, a line isn't what it should be, or a key is there twice.
    """
    found: dict[Key, float] = {}
    for number, line in enumerate(typed_csv.load(path, Published, RESTORE), start=1):
        if line.key in found:
            raise InputError(f"{path}: entry {number}: {line.key} is there twice; {RESTORE}")
        found[line.key] = line.value
    return found


def load_bold() -> frozenset[Key]:
    """Read which numbers the paper prints in bold; errors are those of :func:`load`, but for keys that are twice."""
    return frozenset(line.key for line in typed_csv.load(TABLES, Published, RESTORE) if line.bold)


def load_figure7() -> list[Point]:
    """Read the paper's points of figure 7 (accuracy against calibration size).

    Raises:
        InputError: the file is missing or a line isn't what it should be.
    """
    return typed_csv.load(FIGURE7, Point, RESTORE)
