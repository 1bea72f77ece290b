"""Compare the cells of tables with their reference, both ways: a number that is too good has moved as well."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from flexround.errors import InputError
from flexround.results.grid import Entry
from flexround.results.paired import EXACT
from flexround.results.paper_numbers import Key

REMEDY = "make the reference first, see docs/trust.md"


class Moved(NamedTuple):
    """A cell that is not where its reference is; the tolerance is in the unit of the cell."""

    found: Entry | None
    reference: Entry
    tolerance: float

    def __str__(self) -> str:
        table, number, *row, column, metric = self.reference.key
        where = f"table {table}, row {number} ({' '.join(filter(None, row))}), column {column}, {metric}"
        return f"{where}: {self.reason}"

    @property
    def reason(self) -> str:
        """What is wrong; nothing where the number is as close to its reference as it must be."""
        found, reference = self.found, self.reference
        if found is None or not found.value:
            return f"missing, reference {reference.value}"
        if found.n_examples != reference.n_examples:
            return f"on {found.n_examples} test examples, reference on {reference.n_examples}"
        delta = float(found.value) - float(reference.value)
        if round(abs(delta), EXACT) <= self.tolerance:
            return ""
        return f"{found.value}, reference {reference.value} ({delta:+.2f}), tolerance {self.tolerance:.2f}"


def moved(found: Iterable[Entry], reference: Iterable[Entry], tolerances: Mapping[Key, float]) -> list[Moved]:
    """Return the cells that are missing, or further from their reference than their tolerance.

    Raises:
        InputError: a cell without reference or tolerance.
    """
    here, there = ({entry.key: entry for entry in entries} for entries in (found, reference))
    if unknown := [key for key in here if key not in there] + [key for key in there if key not in tolerances]:
        raise InputError(
            f"the reference lacks number or tolerance of {len(unknown)} cells, first {unknown[0]}; {REMEDY}"
        )
    every = [Moved(here.get(key), expected, tolerances[key]) for key, expected in there.items()]
    return [cell for cell in every if cell.reason]
