"""A table's CSV as rows and columns again, for everything that renders it; and the notes every rendering carries."""

import csv
import itertools
import re
from collections.abc import Iterable
from typing import NamedTuple

from flexround.errors import InputError
from flexround.settings.schema import Scale
from flexround.tables.tidy import COLUMNS

Entry = dict[str, str]  # one line of the CSV


class Line(NamedTuple):
    """A row of the table; ``cells`` holds the entries of its metrics for each column."""

    row: int
    group: int
    section: str
    method: str
    bits: str
    cells: tuple[tuple[Entry, ...], ...]


class Grid(NamedTuple):
    """A whole table; ``columns`` holds each column's name and metrics."""

    number: int
    scale: str
    columns: tuple[tuple[str, tuple[str, ...]], ...]
    lines: tuple[Line, ...]

    @property
    def entries(self) -> list[Entry]:
        """All cells in order."""
        return [entry for line in self.lines for cell in line.cells for entry in cell]


def parse(text: str) -> Grid:
    """Parse the CSV of a table.

    Raises:
        InputError: other columns than this version writes, or no cells.
    """
    reader = csv.DictReader(text.splitlines())
    entries = list(reader)
    if tuple(reader.fieldnames or ()) != COLUMNS or not entries:
        raise InputError(f"table CSV with columns {reader.fieldnames}: made by another version; run tabulate again")
    lines = tuple(_line(row) for _, row in itertools.groupby(entries, key=lambda entry: entry["row"]))
    columns = tuple((cell[0]["column"], tuple(entry["metric"] for entry in cell)) for cell in lines[0].cells)
    return Grid(int(entries[0]["table"]), entries[0]["scale"], columns, lines)


def _line(entries: Iterable[Entry]) -> Line:
    """Gather the entries of one row by column."""
    cells = tuple(tuple(cell) for _, cell in itertools.groupby(entries, key=lambda entry: entry["column"]))
    first = cells[0][0]
    return Line(int(first["row"]), int(first["group"]), first["section"], first["method"], first["bits"], cells)


def scale_note(scale: Scale) -> str:
    """Return the sentence that says whose numbers these are."""
    if scale.comparable:
        return f"Scale: {scale.name}."
    return f"Scale: {scale.name}, with its own models and data instead of the paper's; not the paper's numbers."


def legend(grid: Grid, best: str, partial: str, missing: str) -> str:
    """Return what the marks mean, naming only those the table has.

    Args:
        grid: the table.
        best: how the best value of a group is marked, e.g. "Bold".
        partial: the mark of a cell whose seeds are not all there.
        missing: the mark of a cell that isn't computed.
    """
    entries = grid.entries
    marks = (
        (any(e["best"] == "1" for e in entries), f"{best}: best of its {_contest(entries)} by more than the noise."),
        (any(e["status"] == "partial" for e in entries), f"{partial}: not all seeds are computed yet."),
        (any(e["status"] == "missing" for e in entries), f"{missing}: not computed."),
    )
    return " ".join(sentence for present, sentence in marks if present)


def _contest(entries: list[Entry]) -> str:
    """Return among which rows a value is the best: those of equal section and bits, where the table has them."""
    names = [name for name in ("section", "bits") if any(entry[name] for entry in entries)]
    return " and ".join(names) or "column"


def plain(latex: str) -> str:
    r"""Return LaTeX text as plain text, for HTML: ``\%``, quotes, ties and math signs; other commands are dropped."""
    text = latex.replace("``", "\u201c").replace("''", "\u201d").replace("~", " ").replace("$", "")
    text = re.sub(r"\\([%&#_])", r"\1", text)
    text = text.replace(r"\odot", "\u2299").replace(r"\rightarrow", "\u2192")
    text = text.replace(r"\lfloor", "\u230a").replace(r"\rceil", "\u2309")
    return re.sub(r"\\[a-zA-Z]+\s*|[{}]", "", text)
