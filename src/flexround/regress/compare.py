"""Compare the cells of tables with their reference, both ways: a number that is too good has moved as well."""

import csv
import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from flexround.errors import InputError
from flexround.results.cells import Cell
from flexround.results.published import DECIMALS, Key
from flexround.settings import layout
from flexround.settings.layout import Run
from flexround.settings.schema import Recipe

TOLERANCES = "tolerances.csv"
EXACT = 6  # decimals of a deviation; the rest is floating-point error


class Number(NamedTuple):
    """One cell as it is compared: texts of the tidy CSV, empty where there is nothing, and the first run behind it."""

    value: str
    n_examples: str
    run: Run


@dataclasses.dataclass(frozen=True)
class Moved:
    """A cell that is not where its reference is.

    Attributes:
        key: identity of the cell.
        found: what is there now.
        reference: what was there.
        tolerance: in the unit of the cell.
    """

    key: Key
    found: Number
    reference: Number
    tolerance: float

    def __str__(self) -> str:
        row = " ".join(part for part in (self.key.section, self.key.method, self.key.bits) if part)
        where = f"table {self.key.table}, row {self.key.row} ({row}), column {self.key.column}, {self.key.metric}"
        return f"{where}: {self.reason()}"

    def reason(self) -> str:
        """Return what is wrong."""
        if not self.found.value:
            return f"missing, reference {self.reference.value}"
        if self.found.n_examples != self.reference.n_examples:
            return f"on {self.found.n_examples} test examples, reference on {self.reference.n_examples}"
        delta = float(self.found.value) - float(self.reference.value)
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
    pairs = ((key, found.get(key, Number("", "", number.run)), number) for key, number in reference.items())
    return [Moved(*pair, tolerances[pair[0]]) for pair in pairs if not _within(*pair[1:], tolerances[pair[0]])]


def _within(number: Number, reference: Number, tolerance: float) -> bool:
    """Whether a number is as close to its reference as it must be."""
    if not number.value or number.n_examples != reference.n_examples:
        return False
    return round(abs(float(number.value) - float(reference.value)), EXACT) <= tolerance


def manifest(run: Run, recipes: Mapping[str, Recipe]) -> str:
    """Return the manifest that says how the network of a run was made."""
    quantized = run.recipe in recipes and recipes[run.recipe].quantized
    directory = layout.quantized_dir(run) if quantized else layout.checkpoint_dir(run.scale, run.task, run.checkpoint)
    return f"{directory}/manifest.json"


def of_cells(cells: Iterable[Cell]) -> dict[Key, Number]:
    """Return cells as the tidy CSV has them."""
    return {
        cell.key: Number(f"{cell.median:.{DECIMALS}f}", str(cell.trials[0].n_examples), cell.run)
        if cell.trials
        else Number("", "", cell.run)
        for cell in cells
    }


def read_table(path: Path) -> dict[Key, Number]:
    """Read the cells of a tidy CSV.

    Raises:
        InputError: missing or damaged.
    """
    return {
        key: Number(
            line["value"],
            line["n_examples"],
            Run(line["scale"], line["task"], line["checkpoint"], line["recipe"], 0),
        )
        for key, line in read_lines(path).items()
    }


def read_tolerances(directory: Path) -> dict[Key, float]:
    """Read the tolerance of each cell of a reference.

    Raises:
        InputError: missing or damaged.
    """
    path = directory / TOLERANCES
    try:
        return {key: float(line["tolerance"]) for key, line in read_lines(path).items()}
    except ValueError as error:
        raise InputError(f"{path}: {error}; restore it from git") from error


def read_lines(path: Path) -> dict[Key, dict[str, str]]:
    """Return the lines of a CSV whose first columns are those of ``Key``.

    Raises:
        InputError: missing, or not such a file.
    """
    try:
        with open(path, encoding="utf-8", newline="") as file:
            lines = list(csv.DictReader(file))
        identities = [[line[name] for name in Key._fields] for line in lines]
        keys = [Key(int(table), int(row), *texts) for table, row, *texts in identities]
    except FileNotFoundError as error:
        raise InputError(f"{path}: missing; make the reference first, see docs/comparing.md") from error
    except (KeyError, ValueError) as error:
        raise InputError(f"{path}: {error!r}; restore it from git") from error
    return dict(zip(keys, lines, strict=True))
