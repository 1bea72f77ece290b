"""The first table of the README: a table of the scale real as Markdown, from its CSV."""

import statistics

from flexround.results.grid import GridRow, TableGrid
from flexround.results.render.notes import plain, scale_note
from flexround.settings.schema import ScaleFacts
from flexround.settings.tables import Table

BEGIN, END = "<!-- evidence: made by `make evidence` -->", "<!-- end of evidence -->"


def markdown(grid: TableGrid, table: Table, scale: ScaleFacts) -> str:
    """Return a table as Markdown: a row for each method, a column for each network and number of bits.

    Rows of full precision, which stand before all contests, fill every column of their network.
    """
    bits = list(dict.fromkeys(line.bits for line in grid.rows if any(entry.rival for entry in line.entries)))
    methods = list(dict.fromkeys(line.method for line in grid.rows))
    by_place = {(line.method, line.bits): line for line in grid.rows}
    header = ["top-1 (%)", *(f"{column.name}, {width}" for column in grid.columns for width in bits)]
    rows = [header, ["---", *["--:"] * (len(header) - 1)]]
    for method in methods:
        whole = next((line for line in grid.rows if line.method == method and line.bits not in bits), None)
        lines = [by_place.get((method, width), whole) for width in bits]
        cells = [_shown(line, column) for column in range(len(grid.columns)) for line in lines]
        rows.append([method, *cells])
    best = "Bold: best of its column by" if grid.wins[1] else "No value is the best of its column by"
    note = f"{plain(table.caption)} {scale_note(scale)} {_seeds(grid)} {_noise(grid)} {best} more than the noise."
    return "\n".join([note, "", *(f"| {' | '.join(row)} |" for row in rows)]) + "\n"


def _shown(line: GridRow | None, column: int) -> str:
    """Return a value, bold if it wins."""
    if line is None:
        return ""
    entry = line.cells[column].entries[0]
    return f"**{entry.value}**" if entry.best else str(entry.value or "--")


def _seeds(grid: TableGrid) -> str:
    """Return over how many seeds the values are."""
    seeds = max(entry.n_seeds for entry in grid.entries if entry.n_seeds)
    return f"Median of {seeds} seeds." if seeds > 1 else "One seed."


def _noise(grid: TableGrid) -> str:
    """Return the standard error of the values that take part in a contest."""
    errors = [entry.stderr for entry in grid.entries if entry.stderr and entry.rival]
    return f"Standard error of a value, from the test set: {statistics.median(errors):.1f}." if errors else ""
