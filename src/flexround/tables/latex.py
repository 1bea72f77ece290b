"""A table's CSV as LaTeX, laid out like the paper's: booktabs rules, numbers aligned by siunitx, metrics as a / b."""

import hashlib
import itertools
import textwrap

import jinja2

from flexround.errors import SettingsError
from flexround.settings.schema import Row, Scale, Table
from flexround.tables.grid import Entry, Grid, Line, legend, parse, scale_note
from flexround.tables.published import DECIMALS

HEADER_WIDTH = 13  # characters; a longer column name is broken, or it would pull the number columns apart
DAGGER = r"\textsuperscript{\dag}"
SLASH = r"@{~/~}"  # bold digits are wider than S reserves; a thin space would let them touch the slash
ESCAPES = str.maketrans(
    {c: f"\\{c}" for c in "&%$#_{}"}
    | {"~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "\\": r"\textbackslash{}"}
)

# detect-weight is what siunitx 2 and 3 both know for bold numbers.
FRAGMENT = r"""% Made by: snakemake --cores all results/<< grid.scale >>/table<< grid.number >>.tex
% From table<< grid.number >>.csv, sha256 << sha256 >>
% Needs the packages booktabs, makecell and siunitx.
\begin{table*}[t]
\centering
\small
\sisetup{detect-weight, mode=text}
\caption{<< caption >>}
\label{<< label >>}
\begin{tabular}{<< format >>}
\toprule
<< header | join(" & ") >> \\
<% for group in groups %>
\midrule
<% for cells in group %>
<< cells | join(" & ") >> \\
<% endfor %>
<% endfor %>
\bottomrule
\end{tabular}
\end{table*}
"""
DOCUMENT = r"""\documentclass{article}
\usepackage[margin=20mm]{geometry}
\usepackage{amsmath}
\usepackage{booktabs}
\usepackage{caption}
\usepackage{makecell}
\usepackage{siunitx}
\begin{document}
\setcounter{table}{<< number - 1 >>}
<< fragment >>
\end{document}
"""
_ENVIRONMENT = jinja2.Environment(
    block_start_string="<%",
    block_end_string="%>",
    variable_start_string="<<",
    variable_end_string=">>",
    comment_start_string="<#",
    comment_end_string="#>",
    trim_blocks=True,
    keep_trailing_newline=True,
    undefined=jinja2.StrictUndefined,
)


def render(text: str, table: Table, scale: Scale) -> str:
    r"""Return the table as a LaTeX fragment for ``\input``.

    Args:
        text: the table's CSV.
        table: caption, label and the LaTeX text of the rows.
        scale: named in the caption.

    Raises:
        SettingsError: the spec's rows or descriptive columns don't fit the CSV.
    """
    grid = parse(text)
    rows = [row for group in table.groups for row in group.rows]
    return _ENVIRONMENT.from_string(FRAGMENT).render(
        grid=grid,
        sha256=hashlib.sha256(text.encode()).hexdigest(),
        caption=_caption(grid, table, scale),
        label=table.label,
        format=_format(grid, len(table.descriptive)),
        header=[*table.descriptive, *(_column_header(name, len(metrics)) for name, metrics in grid.columns)],
        groups=[
            [_descriptive(line, rows, grid, table) + _numbers(line) for line in lines]
            for _, lines in itertools.groupby(grid.lines, key=lambda line: line.group)
        ],
    )


def standalone(fragment: str, number: int) -> str:
    """Return a document that compiles on its own around a fragment; ``number`` is the table's in the paper."""
    return _ENVIRONMENT.from_string(DOCUMENT).render(fragment=fragment, number=number)


def escape(text: str) -> str:
    """Return plain text with LaTeX's special characters escaped."""
    return text.translate(ESCAPES)


def _caption(grid: Grid, table: Table, scale: Scale) -> str:
    """Return the paper's caption, then whose numbers these are and what the marks mean."""
    marks = legend(grid, best="Bold", partial=DAGGER, missing="---")
    return " ".join(filter(None, [table.caption.strip(), escape(scale_note(scale)), marks]))


def _descriptive(line: Line, rows: list[Row], grid: Grid, table: Table) -> list[str]:
    """Return the cells left of the numbers: method, section and bits if the table has them, then the extra ones."""
    if len(rows) != len(grid.lines):
        raise SettingsError(f"table {table.number}: {len(rows)} rows in params/tables, {len(grid.lines)} in the CSV")
    row = rows[line.row - 1]
    cells = [row.label or escape(line.method)]
    if any(other.section for other in grid.lines):
        starts = line.row == 1 or grid.lines[line.row - 2].section != line.section
        cells.append(escape(line.section) if starts else "")
    if any(other.bits for other in grid.lines):
        cells.append(escape(line.bits.replace("/", " / ")))
    cells += row.extra
    if len(cells) != len(table.descriptive):
        raise SettingsError(
            f"params/tables/table{table.number:02d}.yaml: row {line.row} has {len(cells)} descriptive cells for the "
            f"{len(table.descriptive)} headers in descriptive"
        )
    return cells


def _numbers(line: Line) -> list[str]:
    """Return one cell for each metric of each column."""
    return [_number(entry) + (_dagger(cell) if entry is cell[-1] else "") for cell in line.cells for entry in cell]


def _number(entry: Entry) -> str:
    """Return a number for an S column, bold if best, or a dash."""
    if not entry["value"]:
        return "{---}"
    return r"\bfseries " + entry["value"] if entry["best"] == "1" else entry["value"]


def _dagger(cell: tuple[Entry, ...]) -> str:
    """Return the mark, without width, of a cell whose seeds are not all there; its metrics come from the same runs."""
    return rf"\rlap{{{DAGGER}}}" if cell[0]["status"] == "partial" else ""


def _format(grid: Grid, descriptive: int) -> str:
    """Return the column format: text, then an S column for each metric with a slash between those of one column."""
    columns = [
        SLASH.join(_number_format([line.cells[index][m] for line in grid.lines]) for m in range(len(metrics)))
        for index, (_, metrics) in enumerate(grid.columns)
    ]
    return "l" + "c" * (descriptive - 1) + "".join(columns)


def _number_format(entries: list[Entry]) -> str:
    """Return the S column that fits its widest number."""
    whole = max([2, *(len(entry["value"].partition(".")[0]) for entry in entries)])
    return f"S[table-format={whole}.{DECIMALS}]"


def _column_header(name: str, width: int) -> str:
    """Return a column's header over its metrics, broken into lines if it is long."""
    lines = [escape(piece) for piece in textwrap.wrap(name, HEADER_WIDTH)]
    text = lines[0] if len(lines) == 1 else r"\makecell{" + r" \\ ".join(lines) + "}"
    return rf"\multicolumn{{{width}}}{{c}}{{{text}}}"
