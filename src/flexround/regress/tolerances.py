"""Find cells that moved from their reference by more than a tolerance: ``tolerances.csv``, or a rule for new cells.

A number that is better by more than the tolerance has moved, too.

    tolerance = max(4 x sqrt(2) x sd, one test example or 0.01)

The factor sqrt(2) is needed because both the reference and the new number vary; 4 because some hundred cells are
compared at once and sd is estimated from few runs.
"""

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from flexround.errors import InputError
from flexround.results.grid import Entry
from flexround.results.paired import EXACT
from flexround.results.paper_numbers import Key

SDS = 4.0
DIGIT = 0.01  # last digit of a table
SEEDS = 3  # least number at which the spread of a cell's own seeds counts
MARGIN = 1.25  # times the shift on another kind of CPU
REMEDY = "make the reference first, see docs/determinism.md"


class Tolerance(NamedTuple):
    """A line of the tolerances of a reference: a cell's standard deviation and tolerance, with their source."""

    table: int
    row: int
    section: str
    method: str
    bits: str
    column: str
    metric: str
    n_seeds: str
    sd: float  # in the unit of the cell
    tolerance: float
    source: str

    @property
    def key(self) -> Key:
        """The identity of the cell."""
        return Key(self.table, self.row, self.section, self.method, self.bits, self.column, self.metric)


def of_new(entry: Entry, trained: bool) -> Tolerance:
    """Return the tolerance of a new cell; a setting, which needs no run, may not move at all.

    A network ``trained`` here may move by its standard error on the test set. Released weights move less: by the
    standard error of the difference from the cell's rival, which shares the test set and the weights.
    """
    if not entry.n_examples:
        return Tolerance(*entry.key, "", 0.0, 0.0, "setting")
    step = max(100.0 / int(entry.n_examples), DIGIT) if entry.higher_is_better == "1" else DIGIT
    sd, source = max(float(entry.stderr or 0), step), "test set"
    if int(entry.n_seeds or 0) >= SEEDS:
        sd, source = float(entry.spread or 0) / 2, f"own {entry.n_seeds} seeds"
    elif not trained:
        sd, source = min(sd, max(float(entry.lead_stderr or 0), step)), "pair with its rival"
    return Tolerance(*entry.key, entry.n_seeds, sd, rounded_up(max(SDS * math.sqrt(2) * sd, step)), source)


def widened(line: Tolerance, here: str, there: str) -> Tolerance:
    """Return a tolerance of at least 1.25 x the difference between two kinds of CPU."""
    if not here or not there or round(abs(float(here) - float(there)), EXACT) <= line.tolerance:
        return line
    return line._replace(tolerance=rounded_up(MARGIN * abs(float(here) - float(there))), source="another kind of CPU")


def rounded_up(limit: float) -> float:
    """Return ``limit`` rounded up to the last digit of a table."""
    return math.ceil(round(limit / DIGIT, EXACT)) * DIGIT


class Moved(NamedTuple):
    """A cell that differs from its reference; the tolerance is in the unit of the cell."""

    found: Entry | None
    reference: Entry
    tolerance: float

    def __str__(self) -> str:
        table, number, *row, column, metric = self.reference.key
        where = f"table {table}, row {number} ({' '.join(filter(None, row))}), column {column}, {metric}"
        return f"{where}: {self.reason}"

    @property
    def reason(self) -> str:
        """The reason in words; empty if the number is within the tolerance."""
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
    """Return the cells that are missing, or differ from their reference by more than their tolerance.

    Raises:
        InputError: a cell has no reference or no tolerance.
    """
    here, there = ({entry.key: entry for entry in entries} for entries in (found, reference))
    if unknown := [key for key in here if key not in there] + [key for key in there if key not in tolerances]:
        raise InputError(
            f"the reference lacks number or tolerance of {len(unknown)} cells, first {unknown[0]}; {REMEDY}"
        )
    every = [Moved(here.get(key), expected, tolerances[key]) for key, expected in there.items()]
    return [cell for cell in every if cell.reason]
