"""A table as rows and columns, read once from its CSV; every rendering is a writer of it."""

import hashlib
import itertools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from flexround.errors import InputError
from flexround.io import artifacts
from flexround.results import typed_csv
from flexround.results.paper_numbers import SETTING, Key
from flexround.results.typed_csv import Printed
from flexround.settings.layout import Run


class Entry(NamedTuple):
    """A line of the CSV: one number of the table, with what it is compared with and where it comes from."""

    table: int
    row: int
    section: str
    method: str
    bits: str
    column: str
    metric: str
    value: Printed | None
    spread: Printed | None
    n_seeds: int | None
    n_examples: int | None
    stderr: Printed | None
    higher_is_better: bool | None
    published: Printed | None
    delta: Printed | None
    status: str
    scale: str
    task: str
    checkpoint: str
    recipe: str
    group: int
    best: bool
    rival: str
    lead: Printed | None
    lead_stderr: Printed | None
    p_value: Printed | None

    @property
    def key(self) -> Key:
        """The identity of the number in the paper."""
        return Key(self.table, self.row, self.section, self.method, self.bits, self.column, self.metric)

    @property
    def run(self) -> Run:
        """The first of the runs behind the number."""
        return Run(self.scale, self.task, self.checkpoint, self.recipe, 0)


class GridCell(NamedTuple):
    """The entries of a row in one column, one for each metric; the last fills what is left of ``width`` numbers."""

    entries: tuple[Entry, ...]
    width: int

    @property
    def last_width(self) -> int:
        """How many numbers the last entry fills."""
        return self.width - len(self.entries) + 1


class GridRow(NamedTuple):
    """A row of the table: a cell for each column, or one that holds for all columns."""

    row: int
    group: int
    section: str
    method: str
    bits: str
    cells: tuple[GridCell, ...]

    @property
    def entries(self) -> list[Entry]:
        """All numbers of the row in order."""
        return [entry for cell in self.cells for entry in cell.entries]

    @property
    def metrics(self) -> str:
        """The metrics of the first column, as a/b: in tables whose rows differ in them, of all columns."""
        return "/".join(entry.metric for entry in self.cells[0].entries)

    @property
    def placed(self) -> Iterator[tuple[Entry, int, int]]:
        """Each entry, its column in numbers from 0, and how many columns it fills."""
        column = 0
        for cell in self.cells:
            for entry in cell.entries:
                span = cell.last_width if entry is cell.entries[-1] else 1
                yield entry, column, span
                column += span


class Heading(NamedTuple):
    """A column's name, its metrics (none where the rows differ, or for settings), its width and place in numbers."""

    name: str
    metrics: tuple[str, ...]
    width: int
    first: int  # how many numbers stand left of it


class TableGrid(NamedTuple):
    """A whole table, and the sha256 of the CSV that it was read from."""

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
        """How many cells are best by more than the noise: FlexRound's, those of a hybrid left out, and all."""
        best = [entry.method for entry in self.entries if entry.best]
        return sum("FlexRound" in method and "AdaQuant" not in method for method in best), len(best)

    @property
    def groups(self) -> list[list[GridRow]]:
        """The rows between two rules."""
        return [list(rows) for _, rows in itertools.groupby(self.rows, key=lambda row: row.group)]

    @property
    def told_apart(self) -> list[str]:
        """Which of section, metrics and bits the rows need to be told apart."""
        needed = {
            "section": any(row.section for row in self.rows),
            "metrics": len({row.metrics for row in self.rows}) > 1,
            "bits": any(row.bits for row in self.rows),
        }
        return [name for name, wanted in needed.items() if wanted]


def load(path: Path) -> TableGrid:
    """Read the CSV file of a table, see :func:`read`."""
    return read(artifacts.read_text(path), str(path))


def read(text: str, name: str = "table CSV") -> TableGrid:
    """Read the CSV of a table.

    Raises:
        InputError: other columns than this version writes, no cells, or a row of some but not all columns.
    """
    entries = typed_csv.read(text, Entry, name)
    if not entries:
        raise InputError(f"{name} without entries: made by another version; make it again")
    by_row = [_by_column(of_row) for _, of_row in itertools.groupby(entries, key=lambda entry: entry.row)]
    count = max(map(len, by_row))
    if wrong := [cells[0][0].row for cells in by_row if len(cells) not in (1, count)]:
        raise InputError(f"{name}: row {wrong[0]} has neither one cell nor one for each column; make it again")
    columns = _headings(zip(*(cells for cells in by_row if len(cells) == count), strict=True))
    rows = tuple(_row(cells, columns) for cells in by_row)
    sha256 = hashlib.sha256(text.encode()).hexdigest()
    return TableGrid(entries[0].table, entries[0].scale, columns, rows, sha256)


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
    """Return a row; a cell of fewer metrics than its column's still fills it."""
    widths = [column.width for column in columns] if len(cells) == len(columns) else [sum(c.width for c in columns)]
    first, filled = cells[0][0], tuple(map(GridCell, cells, widths))
    return GridRow(first.row, first.group, first.section, first.method, first.bits, filled)
