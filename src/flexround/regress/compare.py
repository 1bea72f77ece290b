"""Compare the cells of tables with their reference, both ways: a number that is too good has moved as well."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple, TypeVar

from flexround.errors import InputError
from flexround.results import paper_numbers
from flexround.results.cells import Cell
from flexround.results.contests import EXACT
from flexround.results.paper_numbers import Key
from flexround.results.table_csv import number
from flexround.settings import layout
from flexround.settings.layout import Run
from flexround.settings.schema import Recipe

TOLERANCES = "tolerances.csv"
V = TypeVar("V")


class Number(NamedTuple):
    """One cell as it is compared: texts of the tidy CSV, empty where there is nothing, and the first run behind it."""

    value: str
    n_examples: str
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
        if not self.found.value:
            return f"missing, reference {self.reference.value}"
        if self.found.n_examples != self.reference.n_examples:
            return f"on {self.found.n_examples} test examples, reference on {self.reference.n_examples}"
        delta = float(self.found.value) - float(self.reference.value)
        if round(abs(delta), EXACT) <= self.tolerance:
            return ""
        return f"{self.found.value}, reference {self.reference.value} ({delta:+.2f}), tolerance {self.tolerance:.2f}"


def moved(found: Mapping[Key, Number], reference: Mapping[Key, Number], tolerances: Mapping[Key, float]) -> list[Moved]:
    """Return the cells that are missing, or further from their reference than their tolerance.

    Raises:
        InputError: a cell without reference or tolerance.
    """
    if unknown := [key for key in found if key not in reference] + [key for key in reference if key not in tolerances]:
        raise InputError(
            f"the reference lacks number or tolerance of {len(unknown)} cells, first {unknown[0]}; make it again, see "
            "docs/comparing.md"
        )
    every = [
        Moved(key, found.get(key, Number("", "", expected.run)), expected, tolerances[key])
        for key, expected in reference.items()
    ]
    return [cell for cell in every if cell.reason]


def manifest(run: Run, recipes: Mapping[str, Recipe]) -> str:
    """Return the manifest that says how the network of a run was made."""
    quantized = run.recipe in recipes and recipes[run.recipe].quantized
    directory = layout.quantized_dir(run) if quantized else layout.checkpoint_dir(run.scale, run.task, run.checkpoint)
    return f"{directory}/manifest.json"


def of_cells(cells: Iterable[Cell]) -> dict[Key, Number]:
    """Return cells as the tidy CSV has them."""
    found = {}
    for cell in cells:
        texts = (number(cell.median), str(cell.trials[0].n_examples)) if cell.trials else ("", "")
        found[cell.key] = Number(*texts, cell.run)
    return found


def read_table(path: Path) -> dict[Key, Number]:
    """Read the cells of a tidy CSV, see :func:`read_lines`."""
    return read_lines(path, _number)


def tolerances_file(series: str) -> str:
    """Return the name of the tolerances of a series of tables."""
    return TOLERANCES if series == "table" else f"{series}-{TOLERANCES}"


def read_tolerances(directory: Path, series: str = "table") -> dict[Key, float]:
    """Read the tolerance of each cell of a reference, see :func:`read_lines`."""
    return read_lines(directory / tolerances_file(series), lambda line: float(line["tolerance"]))


def read_lines(path: Path, convert: Callable[[dict[str, str]], V]) -> dict[Key, V]:
    """Return what ``convert`` makes of the lines of a CSV of cells.

    Raises:
        InputError: missing or damaged.
    """
    return paper_numbers.read(path, convert, missing="make the reference first, see docs/comparing.md")


def _number(line: dict[str, str]) -> Number:
    """Return one line of a tidy CSV."""
    run = Run(line["scale"], line["task"], line["checkpoint"], line["recipe"], 0)
    return Number(line["value"], line["n_examples"], run)
