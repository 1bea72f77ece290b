"""Compare the cells of tables with their reference, both ways: a number that is too good has moved as well."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from flexround.errors import InputError
from flexround.results import typed_csv
from flexround.results.cells import Cell
from flexround.results.grid import Entry
from flexround.results.paired import EXACT
from flexround.results.paper_numbers import Key
from flexround.results.table_csv import number
from flexround.results.typed_csv import Printed
from flexround.settings.layout import Run

REMEDY = "make the reference first, see docs/trust.md"


class Number(NamedTuple):
    """One cell as it is compared: the number that its table prints, None where it is missing, and the first run."""

    value: Printed | None
    n_examples: int | None
    run: Run


class Moved(NamedTuple):
    """A cell that is not where its reference is; the tolerance is in the unit of the cell."""

    key: Key
    found: Number
    reference: Number
    tolerance: float

    def __str__(self) -> str:
        row = " ".join(part for part in (self.key.section, self.key.method, self.key.bits) if part)
        where = f"table {self.key.table}, row {self.key.row} ({row}), column {self.key.column}, {self.key.metric}"
        return f"{where}: {self.reason}"

    @property
    def reason(self) -> str:
        """What is wrong; nothing where the number is as close to its reference as it must be."""
        value, reference = self.found.value, self.reference.value
        if value is None:
            return f"missing, reference {reference}"
        if reference is None or self.found.n_examples != self.reference.n_examples:
            return f"on {self.found.n_examples} test examples, reference on {self.reference.n_examples}"
        delta = value - reference
        if round(abs(delta), EXACT) <= self.tolerance:
            return ""
        return f"{value}, reference {reference} ({delta:+.2f}), tolerance {self.tolerance:.2f}"


def moved(found: Mapping[Key, Number], reference: Mapping[Key, Number], tolerances: Mapping[Key, float]) -> list[Moved]:
    """Return the cells that are missing, or further from their reference than their tolerance.

    Raises:
        InputError: a cell without reference or tolerance.
    """
    if unknown := [key for key in found if key not in reference] + [key for key in reference if key not in tolerances]:
        raise InputError(
            f"the reference lacks number or tolerance of {len(unknown)} cells, first {unknown[0]}; make it again, see "
            "docs/trust.md"
        )
    every = [
        Moved(key, found.get(key, Number(None, None, expected.run)), expected, tolerances[key])
        for key, expected in reference.items()
    ]
    return [cell for cell in every if cell.reason]


def of_cells(cells: Iterable[Cell]) -> dict[Key, Number]:
    """Return cells as the CSV of their table has them."""
    return {
        cell.key: Number(Printed(number(cell.median)), cell.trials[0].n_examples, cell.run)
        if cell.trials
        else Number(None, None, cell.run)
        for cell in cells
    }


def read_table(path: Path) -> dict[Key, Number]:
    """Read the cells of the CSV of a table, see :func:`read_entries`."""
    return {entry.key: Number(entry.value, entry.n_examples, entry.run) for entry in read_entries(path)}


def read_entries(path: Path) -> list[Entry]:
    """Read the CSV of a table."""
    return typed_csv.load(path, Entry, REMEDY)
