"""A table as rows and columns, built from its DataFrame; every rendering writes this grid."""

import hashlib
import itertools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from flexround.errors import InputError
from flexround.results import frames
from flexround.results.paper_numbers import SETTING, Key
from flexround.settings.layout import Run


class Entry(NamedTuple):
    """A line of a table: one number, its comparisons and its origin.

    Numbers are text as printed; missing numbers are empty.
    """

    table: int
    row: int
    section: str
    method: str
    bits: str
    column: str
    metric: str
    value: str
    spread: str
    n_seeds: str
    n_examples: str
    stderr: str
    higher_is_better: str
    published: str
    delta: str
    status: str
    scale: str
    task: str
    checkpoint: str
    recipe: str
    group: int
    best: int  # 1 or 0
    rival: str
    lead: str
    lead_stderr: str
    p_value: str

    @property
    def key(self) -> Key:
        """The identity of the number in the paper."""
        return Key(self.table, self.row, self.section, self.method, self.bits, self.column, self.metric)

    @property
    def run(self) -> Run:
        """The first of the runs behind the number."""
        return Run(self.scale, self.task, self.checkpoint, self.recipe, 0)


class GridRow(NamedTuple):
    """A row of the table: a cell for each column, or one cell for all columns.

    A cell has a number for each metric; the last number fills the rest of the cell's width.
    """

    row: int
    group: int
    section: str
    method: str
    bits: str
    cells: tuple[tuple[Entry, ...], ...]
    widths: tuple[int, ...]

    @property
    def entries(self) -> list[Entry]:
        """All numbers of the row in order."""
        return [entry for cell in self.cells for entry in cell]

    @property
    def metrics(self) -> str:
        """The metrics of the first column, as a/b; if rows differ in their metrics, those of all columns."""
        return "/".join(entry.metric for entry in self.cells[0])

    @property
    def placed(self) -> Iterator[tuple[Entry, int, int]]:
        """Each entry with its first column, counted in numbers from 0, and the number of columns that it fills."""
        column = 0
        for cell, width in zip(self.cells, self.widths, strict=True):
            for entry in cell:
                span = width - len(cell) + 1 if entry is cell[-1] else 1
                yield entry, column, span
                column += span


class Heading(NamedTuple):
    """A column: name, metrics (none if the rows differ, or for settings), width and position in numbers."""

    name: str
    metrics: tuple[str, ...]
    width: int
    first: int  # count of numbers to its left


class TableGrid(NamedTuple):
    """A whole table, and the sha256 of its CSV."""

    number: int
    scale: str
    columns: tuple[Heading, ...]
    rows: tuple[GridRow, ...]
    sha256: str

    @property
    def entries(self) -> list[Entry]:
        """All numbers in order."""
        return [entry for row in self.rows for entry in row.entries]

    @property
    def wins(self) -> tuple[int, int]:
        """The number of cells that are best by more than the noise: FlexRound's (without hybrids), and all."""
        best = [entry.method for entry in self.entries if entry.best]
        return sum("FlexRound" in method and "AdaQuant" not in method for method in best), len(best)

    @property
    def groups(self) -> list[list[GridRow]]:
        """The rows, grouped by the rules between them."""
        return [list(rows) for _, rows in itertools.groupby(self.rows, key=lambda row: row.group)]

    @property
    def told_apart(self) -> list[str]:
        """The fields among section, metrics and bits that are needed to distinguish the rows."""
        needed = {
            "section": any(row.section for row in self.rows),
            "metrics": len({row.metrics for row in self.rows}) > 1,
            "bits": any(row.bits for row in self.rows),
        }
        return [name for name, wanted in needed.items() if wanted]


def load(path: Path) -> TableGrid:
    """Read the CSV of a table."""
    return of(frames.read(path, Entry))


def of(frame: pd.DataFrame) -> TableGrid:
    """Return the layout of a table, whose columns are the fields of :class:`Entry`.

    Raises:
        InputError: the table has no cells, or a row has some but not all columns.
    """
    entries = frames.lines(frame, Entry)
    by_row = [_by_column(of_row) for _, of_row in itertools.groupby(entries, key=lambda entry: entry.row)]
    count = max(map(len, by_row), default=0)
    if not entries or any(len(cells) not in (1, count) for cells in by_row):
        raise InputError("a table's CSV without entries, or with a row of some but not all columns; make it again")
    columns = _headings(zip(*(cells for cells in by_row if len(cells) == count), strict=True))
    sha256 = hashlib.sha256(frames.text(frame).encode()).hexdigest()
    return TableGrid(entries[0].table, entries[0].scale, columns, tuple(_row(of, columns) for of in by_row), sha256)


def _by_column(entries: Iterable[Entry]) -> list[tuple[Entry, ...]]:
    return [tuple(of_column) for _, of_column in itertools.groupby(entries, key=lambda entry: entry.column)]


def _headings(columns: Iterable[Sequence[tuple[Entry, ...]]]) -> tuple[Heading, ...]:
    headings, first = [], 0
    for cells in columns:
        metrics = {tuple(entry.metric for entry in cell) for cell in cells} - {(SETTING,)}
        width = max(map(len, cells))
        headings.append(Heading(cells[0][0].column, metrics.pop() if len(metrics) == 1 else (), width, first))
        first += width
    return tuple(headings)


def _row(cells: list[tuple[Entry, ...]], columns: Sequence[Heading]) -> GridRow:
    """Return a row; a cell with fewer metrics than its column still fills the column."""
    widths = [column.width for column in columns] if len(cells) == len(columns) else [sum(c.width for c in columns)]
    first = cells[0][0]
    return GridRow(first.row, first.group, first.section, first.method, first.bits, tuple(cells), tuple(widths))
