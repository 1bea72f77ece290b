"""A table's CSV as rows and columns again, for everything that renders it; and the notes every rendering carries."""

import csv
import itertools
import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from flexround.errors import InputError
from flexround.results.paper_numbers import SETTING
from flexround.results.table_csv import COLUMNS, NOT_RUN
from flexround.settings.schema import ScaleFacts

Entry = dict[str, str]  # one line of the CSV
WHOLE = ("table", "row", "group")  # columns of whole numbers, and of numbers that may be missing
NUMBERS = ("value", "spread", "n_seeds", "n_examples", "stderr", "published", "delta", "lead", "lead_stderr", "p_value")
SUBSCRIPTS = "₀₁₂₃₄₅₆₇₈₉"
SIGNS = {  # LaTeX -> text; double quotes before single ones
    **{"``": "\u201c", "''": "\u201d", "`": "\u2018", "'": "\u2019"},
    **{r"\odot": "\u2299", r"\rightarrow": "\u2192", r"\lfloor": "\u230a", r"\rceil": "\u2309"},
}


class LayoutRow(NamedTuple):
    """A row of the table; ``cells`` holds the entries of its metrics for each column."""

    row: int
    group: int
    section: str
    method: str
    bits: str
    cells: tuple[tuple[Entry, ...], ...]

    @property
    def metrics(self) -> str:
        """The metrics of the first column, as a/b: in tables whose rows differ in them, of all columns."""
        return "/".join(entry["metric"] for entry in self.cells[0])


class Heading(NamedTuple):
    """A column's name, its metrics (none where the rows differ, or for settings) and its width in numbers."""

    name: str
    metrics: tuple[str, ...]
    width: int


class Layout(NamedTuple):
    """A whole table."""

    number: int
    scale: str
    columns: tuple[Heading, ...]
    lines: tuple[LayoutRow, ...]

    @property
    def entries(self) -> list[Entry]:
        """All cells in order."""
        return [entry for line in self.lines for cell in line.cells for entry in cell]

    @property
    def wins(self) -> tuple[int, int]:
        """How many cells are best by more than the noise: FlexRound's, and all."""
        best = [entry["method"] for entry in self.entries if entry["best"] == "1"]
        return sum("FlexRound" in method for method in best), len(best)

    def cells(self, line: LayoutRow) -> list[tuple[tuple[Entry, ...], int]]:
        """Return the cells of a row, each with the width, in numbers, that its last entry fills.

        A cell of fewer metrics than its column's still fills it; the cell of a row of one holds for all columns.
        """
        if len(line.cells) < len(self.columns):
            return [(line.cells[0], sum(column.width for column in self.columns))]
        return [(cell, column.width - len(cell) + 1) for cell, column in zip(line.cells, self.columns, strict=True)]


def parse(text: str) -> Layout:
    """Parse the CSV of a table.

    Raises:
        InputError: other columns than this version writes, no cells, or a row of some but not all columns.
    """
    reader = csv.DictReader(text.splitlines())
    try:
        entries = list(reader)
    except csv.Error as error:
        raise InputError(f"table CSV: {error}; run tabulate again") from error
    if tuple(reader.fieldnames or ()) != COLUMNS or not entries:
        raise InputError(f"table CSV with columns {reader.fieldnames}: made by another version; run tabulate again")
    for number, entry in enumerate(entries, 1):
        _check(entry, f"table CSV: entry {number}")
    lines = tuple(_line(row) for _, row in itertools.groupby(entries, key=lambda entry: entry["row"]))
    width = max(len(line.cells) for line in lines)
    if wrong := [line.row for line in lines if len(line.cells) not in (1, width)]:
        raise InputError(f"table CSV: row {wrong[0]} has neither one cell nor one for each column; run tabulate again")
    full = (line.cells for line in lines if len(line.cells) == width)
    columns = tuple(_heading(cells) for cells in zip(*full, strict=True))
    return Layout(int(entries[0]["table"]), entries[0]["scale"], columns, lines)


def _check(entry: dict[Any, Any], where: str) -> None:
    """Raise InputError if an entry has more or fewer cells than columns, or text in one of numbers."""
    if None in entry or None in entry.values():
        raise InputError(f"{where} has not as many cells as there are columns; run tabulate again")
    for column in (*WHOLE, *NUMBERS):
        try:
            if column in WHOLE:
                int(entry[column])
            elif entry[column]:
                float(entry[column])
        except ValueError as error:
            raise InputError(f"{where}: {column} = {entry[column]!r} is no number; run tabulate again") from error


def _heading(cells: Sequence[tuple[Entry, ...]]) -> Heading:
    """Return the heading over the cells of a column."""
    metrics = {tuple(entry["metric"] for entry in cell) for cell in cells} - {(SETTING,)}
    return Heading(cells[0][0]["column"], metrics.pop() if len(metrics) == 1 else (), max(map(len, cells)))


def _line(entries: Iterable[Entry]) -> LayoutRow:
    """Gather the entries of one row by column."""
    cells = tuple(tuple(cell) for _, cell in itertools.groupby(entries, key=lambda entry: entry["column"]))
    first = cells[0][0]
    return LayoutRow(int(first["row"]), int(first["group"]), first["section"], first["method"], first["bits"], cells)


def optional(layout: Layout) -> list[str]:
    """Return which of section, metrics and bits the rows of a table need to be told apart."""
    needed = {
        "section": any(line.section for line in layout.lines),
        "metrics": len({line.metrics for line in layout.lines}) > 1,
        "bits": any(line.bits for line in layout.lines),
    }
    return [name for name, wanted in needed.items() if wanted]


def scale_note(scale: ScaleFacts) -> str:
    """Return the sentence that says whose numbers these are."""
    if scale.comparable:
        return f"Scale: {scale.name}."
    return f"Scale: {scale.name}, with its own models and data instead of the paper's; not the paper's numbers."


def absent(entry: Entry, missing: str) -> str:
    """Return what stands in a cell without a value: that it was not to be run, or else ``missing``."""
    return NOT_RUN if entry["status"] == NOT_RUN else missing


def legend(layout: Layout, best: str, partial: str, missing: str) -> str:
    """Return what the marks mean, naming only those the table has: e.g. "Bold", "†" and "—"."""
    entries = layout.entries
    contest = " and ".join(name for name in ("section", "bits") if any(entry[name] for entry in entries)) or "column"
    marks = (
        (any(e["best"] == "1" for e in entries), f"{best}: best of its {contest} by more than the noise."),
        (any(e["status"] == "partial" for e in entries), f"{partial}: not all seeds are computed yet."),
        (any(e["status"] == "missing" for e in entries), f"{missing}: not computed."),
    )
    return " ".join(sentence for present, sentence in marks if present)


def plain(latex: str) -> str:
    r"""Return LaTeX text as plain text, for HTML: ``\%``, quotes, ties, subscripts; other commands are dropped."""
    text = re.sub(r"\\textsubscript\{([^}]*)\}", r"-\1", latex)  # sizes: BERT-Base, OPT-125M
    text = re.sub(r"(?<!\\)_(\d)", lambda digit: SUBSCRIPTS[int(digit[1])], text)
    text = re.sub(r"\\([%&#_])", r"\1", text).replace("~", " ").replace("$", "")
    for written, sign in SIGNS.items():
        text = text.replace(written, sign)
    return re.sub(r"\\[a-zA-Z]+\s*|[{}]", "", text)
