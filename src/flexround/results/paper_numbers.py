"""The paper's own numbers: ``params/published.csv`` and ``params/published_figure7.csv``."""

import csv
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

from flexround.errors import InputError
from flexround.settings.layout import PARAMS

V = TypeVar("V")
TABLES = PARAMS / "published.csv"
FIGURE7 = PARAMS / "published_figure7.csv"
DECIMALS = 2  # of every result in the paper's tables
SETTING = "value"  # stands for the metric in its tables of settings


class Key(NamedTuple):
    """The identity of a published number; ``row`` counts from 1 over the whole table."""

    table: int
    row: int
    section: str
    method: str
    bits: str
    column: str
    metric: str


class Point(NamedTuple):
    """A point of the paper's figure 7: mean top-1 accuracy and its spread over seeds (percent)."""

    size: int
    method: str
    value: float
    spread: float


def load(path: Path = TABLES) -> dict[Key, float]:
    """Read the published numbers of all tables, see :func:`read`."""
    return read(path, lambda line: float(line["value"]))


def load_bold(path: Path = TABLES) -> frozenset[Key]:
    """Read which numbers the paper prints in bold, see :func:`read`."""
    return frozenset(key for key, bold in read(path, lambda line: int(line["bold"])).items() if bold)


def load_figure7(path: Path = FIGURE7) -> list[Point]:
    """Read the paper's points of figure 7 (accuracy against calibration size).

    Raises:
        InputError: the file is missing or a line isn't a number.
    """
    try:
        return [Point(int(p["size"]), p["method"], float(p["value"]), float(p["spread"])) for p in _lines(path)]
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path}: {error}; restore the file from git") from error


def read(path: Path, convert: Callable[[dict[str, str]], V], missing: str = "restore it from git") -> dict[Key, V]:
    """Read a CSV of cells: what ``convert`` makes of each line, by the line's key.

    Raises:
        InputError: the file is missing, a line isn't what it should be, or a key is there twice.
    """
    found: dict[Key, V] = {}
    for number, line in enumerate(_lines(path, missing), start=2):
        try:
            key = Key(int(line["table"]), int(line["row"]), *(line[name] for name in Key._fields[2:]))
            value = convert(line)
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"{path}: line {number}: {error!r}; restore the file from git") from error
        if key in found:
            raise InputError(f"{path}: line {number}: {key} is there twice; restore the file from git")
        found[key] = value
    return found


def _lines(path: Path, missing: str = "restore it from git") -> list[dict[str, str]]:
    """Return the lines of a CSV file by column name; lines that start with # tell its source."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise InputError(f"{path}: missing; {missing}") from error
    return list(csv.DictReader(line for line in text.splitlines() if not line.startswith("#")))
