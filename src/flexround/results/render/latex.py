"""A table as LaTeX, laid out like the paper's: booktabs rules, numbers aligned by siunitx, metrics as a / b."""

import itertools
import textwrap

from flexround.errors import SettingsError
from flexround.results.grid import Entry, GridRow, Heading, TableGrid
from flexround.results.paper_numbers import DECIMALS
from flexround.results.render.html import HTML
from flexround.results.render.words import absent, legend, scale_note
from flexround.settings.schema import ScaleFacts
from flexround.settings.tables import Column, Row, Table

HEADER_WIDTH = 13  # characters; a longer column name is broken, or it would spread the number columns
FIT = r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{"  # scales down a table that is too wide
DAGGER = r"\dag"
PAPER = "In brackets: the paper's numbers."
SLASH = r"@{~/~}"  # bold digits exceed S's width; with a thin space they would touch the slash
LATEX = HTML.overlay(  # << >> and <% %>, because braces are LaTeX's own
    block_start_string="<%",
    block_end_string="%>",
    variable_start_string="<<",
    variable_end_string=">>",
    comment_start_string="<#",
    comment_end_string="#>",
    autoescape=False,
)
ESCAPES = str.maketrans(
    {c: f"\\{c}" for c in "&%$#_{}"}
    | {"~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "\\": r"\textbackslash{}"}
)


def render(grid: TableGrid, table: Table, scale: ScaleFacts, published: bool = False) -> str:
    r"""Return a table as a LaTeX fragment for ``\input``; with ``published``, the paper's numbers follow in brackets.

    Raises:
        SettingsError: a row has more or fewer descriptive cells than the table has headers.
    """
    marks = legend(grid, partial=_superscript(DAGGER), missing="---")
    published = published and any(entry.published for entry in grid.entries)
    caption = escape(scale_note(scale)), table.caption.strip(), PAPER if published else "", marks
    headers = (_column_header(*both, published) for both in zip(grid.columns, table.columns, strict=True))
    return LATEX.get_template("table.tex").render(
        grid=grid,
        fit=FIT,
        name=table.name,
        caption=" ".join(filter(None, caption)),
        label=table.label,
        format=_format(grid, table, published),
        header=[*table.descriptive, *headers],
        groups=_groups(grid, table, published),
        notes=[(letter, erratum.text.strip()) for letter, erratum in table.notes],
    )


def escape(text: str) -> str:
    """Return plain text with LaTeX's special characters escaped."""
    return text.translate(ESCAPES)


def _groups(grid: TableGrid, table: Table, published: bool) -> list[tuple[str, list[list[str]]]]:
    """Return groups of rows, each with the rule above it: a short rule within a section shown in the first column."""
    rows = table.rows()
    width = len(table.descriptive) + sum(column.width + published for column in grid.columns)
    inner = rf"\cmidrule{{2-{width}}}"
    groups, section = [], ""
    for lines in grid.groups:
        rule = inner if table.method_at and lines[0].section == section else r"\midrule"
        cells = [_descriptive(line, rows[line.row - 1] if rows else None, grid, table) for line in lines]
        groups.append(
            (rule, [left + _numbers(line, grid, table, published) for left, line in zip(cells, lines, strict=True)])
        )
        section = lines[-1].section
    return groups


def _descriptive(line: GridRow, row: Row | None, grid: TableGrid, table: Table) -> list[str]:
    """Return the cells left of the numbers: section and bits if the table has them, extra cells, and the method.

    A section's name is in the middle of its rows, and again if the section returns later. Settings have no ``row``.
    """
    cells = []
    if any(other.section for other in grid.rows):
        stretches = ([row.row for row in rows] for _, rows in itertools.groupby(grid.rows, lambda row: row.section))
        same = next(rows for rows in stretches if line.row in rows)
        cells.append(escape(line.section) if line.row == same[len(same) // 2] else "")
    if any(other.bits for other in grid.rows):
        cells.append(escape(line.bits.replace("/", " / ")))
    cells += row.extra if row else ()
    if table.descriptive:
        method = row.label if row and row.label else escape(line.method)
        cells.insert(table.method_at, method + _superscript(table.mark(line.row)))
    if len(cells) != len(table.descriptive):
        raise SettingsError(
            f"{table.file}: row {line.row} has {len(cells)} descriptive cells for the "
            f"{len(table.descriptive)} headers in descriptive"
        )
    return cells


def _numbers(line: GridRow, grid: TableGrid, table: Table, published: bool) -> list[str]:
    """Return one cell for each metric of each column; the last cell of a column fills the remaining width.

    With ``published``, a column ends with a cell of the paper's numbers.
    """
    texts = []
    for cell, width in zip(line.cells, line.widths, strict=True):
        if published and len(line.cells) < len(grid.columns):  # one cell for all columns
            width += len(grid.columns) - 1
        *first, last = map(_number, cell)
        # a cell's metrics come from the same runs; its mark takes no width
        marks = table.mark(line.row, cell[0].column) + (DAGGER if cell[0].status == "partial" else "")
        last += rf"\rlap{{{_superscript(marks)}}}" if marks else ""
        texts += [*first, rf"\multicolumn{{{span}}}{{c}}{{{last}}}" if (span := width - len(first)) > 1 else last]
        if published:
            paper = "/".join(entry.published for entry in cell if entry.published)
            texts.append(rf"\color{{gray}}\scriptsize ({escape(paper)})" if paper else "")
    return texts


def _number(entry: Entry) -> str:
    """Return a number for an S column, bold if best, or a dash."""
    if not entry.value:
        return f"{{{absent(entry, '---')}}}"
    return rf"\bfseries {entry.value}" if entry.best else entry.value


def _superscript(marks: str) -> str:
    return rf"\textsuperscript{{{marks}}}" if marks else ""


def _format(grid: TableGrid, table: Table, published: bool) -> str:
    """Return the column format: text, then an S column for each metric, with slashes within a table column.

    With ``published``, a text column follows the metrics of a table column.
    """
    texts = ["l" if header == "Method" else "c" for header in table.descriptive]
    if table.settings:
        return "".join(texts) + ("cl" if published else "c") * len(grid.columns)
    for index, column in enumerate(grid.columns):
        values = [[entry.value for entry in line.cells[index]] for line in grid.rows]
        whole = [  # most digits before the decimal point
            max(2, *(len(of_row[metric].partition(".")[0]) for of_row in values if metric < len(of_row)))
            for metric in range(column.width)
        ]
        texts.append(SLASH.join(f"S[table-format={digits}.{DECIMALS}]" for digits in whole) + published * "@{~}l")
    return "".join(texts)


def _column_header(heading: Heading, column: Column, published: bool) -> str:
    """Return a column's header over its metrics, broken into lines if it is long."""
    lines = [escape(piece) for piece in textwrap.wrap(heading.name, HEADER_WIDTH)]
    text = lines[0] if len(lines) == 1 else r"\makecell{" + r" \\ ".join(lines) + "}"
    return rf"\multicolumn{{{heading.width + published}}}{{c}}{{{column.label or text}}}"
