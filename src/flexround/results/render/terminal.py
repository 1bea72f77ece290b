"""A table as fixed-width text: our values and, in brackets, the paper's."""

from collections.abc import Iterable

from flexround.results.grid import Entry, GridRow, TableGrid
from flexround.results.paper_numbers import SETTING
from flexround.results.render import words
from flexround.results.render.words import absent, legend, scale_note
from flexround.settings.schema import ScaleFacts
from flexround.settings.tables import Table

GAP = "  "
MISSING = "--"


def render(grid: TableGrid, table: Table, scale: ScaleFacts) -> str:
    """Return a table for a terminal, ASCII only; its first line names the scale."""
    names = ["method", *grid.told_apart]
    columns = [f"{column.name} {'/'.join(map(words.of, column.metrics))}".rstrip() for column in grid.columns]
    rows = [[*map(str.capitalize, names), *columns], *(_row(line, names, grid) for line in grid.rows)]
    used = [index for index in range(len(rows[0])) if any(row[index] for row in rows[1:])]
    widths = {index: max(len(row[index]) for row in rows) for index in used}
    body = [GAP.join(row[index].ljust(widths[index]) for index in used).rstrip() for row in rows]
    rule = "-" * max(len(line) for line in body)
    published = any(entry.published for entry in grid.entries)
    title = f"Table {table.name.removeprefix('table')}: ours{' (paper)' if published else ''}"
    lines = [f"{title}. {scale_note(scale)}", rule, body[0]]
    previous = None
    for line, row in zip(grid.rows, body[1:], strict=True):
        lines += [rule, row] if line.group != previous else [row]
        previous = line.group
    notes = legend(grid, best="*", partial="~", missing=MISSING)
    return "\n".join([*lines, rule, *filter(None, (notes, _found(grid)))]) + "\n"


def _found(grid: TableGrid) -> str:
    """Return the number of cells that win their contest, in words, for a table of results."""
    count = sum(bool(entry.value) and entry.metric != SETTING for entry in grid.entries)
    ours, best = grid.wins
    if count and not best:
        return f"None of {count} cells leads by more than the noise."
    return f"{best} of {count} cells lead by more than the noise, {ours} of them with FlexRound." if count else ""


def _row(line: GridRow, names: Iterable[str], grid: TableGrid) -> list[str]:
    """Return a row's labels, then its numbers; a value for all columns has a column of its own."""
    cells = {cell[0].column: _cell(cell) for cell in line.cells}
    return [*(getattr(line, name) for name in names), *(cells.get(column.name, "") for column in grid.columns)]


def _cell(entries: tuple[Entry, ...]) -> str:
    """Return e.g. ``91.20*/99.60 (70.28/89.44)``: our metrics with their marks, then the paper's."""
    ours = "/".join(_marked(entry) for entry in entries)
    published = "/".join(entry.published for entry in entries)
    return f"{ours} ({published})" if entries[0].published else ours


def _marked(entry: Entry) -> str:
    """Return our value, marked if it is best or incomplete, or the mark of a missing value."""
    partial = "~" if entry.status == "partial" else ""
    return (entry.value or absent(entry, MISSING)) + ("*" if entry.best else "") + partial
