"""The paper's own numbers: ``params/published.csv`` and ``params/published_figure7.csv``."""

import csv
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

from flexround.errors import InputError
from flexround.settings.layout import PARAMS

N = TypeVar("N", int, float)
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
    """Read the published numbers of all tables.

    Raises:
        InputError: the file is missing, a line isn't a number, or a key is there twice.
    """
    return _column(path, "value", float)


def load_bold(path: Path = TABLES) -> frozenset[Key]:
    """Read which numbers the paper prints in bold.

    Raises:
        InputError: as :func:`load`.
    """
    return frozenset(key for key, bold in _column(path, "bold", int).items() if bold)


def load_figure7(path: Path = FIGURE7) -> list[Point]:
    """Read the paper's points of figure 7 (accuracy against calibration size).

    Raises:
        InputError: the file is missing or a line isn't a number.
    """
    try:
        return [
            Point(int(fields["size"]), fields["method"], float(fields["value"]), float(fields["spread"]))
            for fields in _read(path)
        ]
    except (KeyError, ValueError) as error:
        raise InputError(f"{path}: {error}; restore the file from git") from error


def _column(path: Path, name: str, convert: Callable[[str], N]) -> dict[Key, N]:
    """Return one column of the published numbers."""
    column: dict[Key, N] = {}
    for line, fields in enumerate(_read(path), start=2):
        try:
            table, row = int(fields["table"]), int(fields["row"])
            key = Key(table, row, *(fields[field] for field in Key._fields[2:]))
            value = convert(fields[name])
        except (KeyError, ValueError) as error:
            raise InputError(f"{path}: line {line}: {error}; restore the file from git") from error
        if key in column:
            raise InputError(f"{path}: line {line}: {key} is there twice; restore the file from git")
        column[key] = value
    return column


def _read(path: Path) -> list[dict[str, str]]:
    """Return the lines of a CSV file by column name; lines that start with # tell its source."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise InputError(f"{path}: missing; restore it from git") from error
    return list(csv.DictReader(line for line in text.splitlines() if not line.startswith("#")))
