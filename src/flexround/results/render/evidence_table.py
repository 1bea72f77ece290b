"""The first table of the README: a table of the scale real as Markdown, from its CSV."""

import statistics

from flexround.results.render.table_layout import Entry, Layout, LayoutRow, parse, plain, scale_note
from flexround.settings.schema import ScaleFacts
from flexround.settings.tables import Table

BEGIN, END = "<!-- evidence: made by `make evidence` -->", "<!-- end of evidence -->"


def markdown(text: str, table: Table, scale: ScaleFacts) -> str:
    """Return the CSV of a table as Markdown: a row for each method, a column for each network and number of bits.

    Rows of full precision, which stand before all contests, fill every column of their network.
    """
    layout = parse(text)
    bits = list(dict.fromkeys(line.bits for line in layout.lines if any(_compared(cell) for cell in _entries(line))))
    methods = list(dict.fromkeys(line.method for line in layout.lines))
    by_place = {(line.method, line.bits): line for line in layout.lines}
    header = ["top-1 (%)", *(f"{column.name}, {width}" for column in layout.columns for width in bits)]
    rows = [header, ["---", *["--:"] * (len(header) - 1)]]
    for method in methods:
        whole = next((line for line in layout.lines if line.method == method and line.bits not in bits), None)
        lines = [by_place.get((method, width), whole) for width in bits]
        cells = [_shown(line, column) for column in range(len(layout.columns)) for line in lines]
        rows.append([method, *cells])
    best = "Bold: best of its column by" if layout.wins[1] else "No value is the best of its column by"
    note = f"{plain(table.caption)} {scale_note(scale)} {_seeds(layout)} {_noise(layout)} {best} more than the noise."
    return "\n".join([note, "", *(f"| {' | '.join(row)} |" for row in rows)]) + "\n"


def _entries(line: LayoutRow) -> list[Entry]:
    """Return all cells of a row."""
    return [entry for cell in line.cells for entry in cell]


def _compared(entry: Entry) -> bool:
    """Whether a cell takes part in a contest."""
    return bool(entry["rival"])


def _shown(line: LayoutRow | None, column: int) -> str:
    """Return a value, bold if it wins."""
    if line is None:
        return ""
    entry = line.cells[column][0]
    return f"**{entry['value']}**" if entry["best"] == "1" else entry["value"] or "--"


def _seeds(layout: Layout) -> str:
    """Return over how many seeds the values are."""
    seeds = max(int(entry["n_seeds"]) for entry in layout.entries if entry["n_seeds"])
    return f"Median of {seeds} seeds." if seeds > 1 else "One seed."


def _noise(layout: Layout) -> str:
    """Return the standard error of the values that take part in a contest."""
    errors = [float(entry["stderr"]) for entry in layout.entries if entry["stderr"] and _compared(entry)]
    return f"Standard error of a value, from the test set: {statistics.median(errors):.1f}." if errors else ""
