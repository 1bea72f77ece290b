"""HTML from Jinja templates: a table as a self-contained page, and helpers for every page.

A cell of the page shows our value beside the paper's value, and the rest on hover.
"""

import json
import re
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from flexround.results.grid import Entry, TableGrid
from flexround.results.render import words
from flexround.settings.schema import ScaleFacts
from flexround.settings.tables import Table

DIGITS = 6  # significant digits; the rest is floating-point error


def link(text: str, target: str) -> str:
    """Return a text that links to an identifier of the page; without identifier return the text alone."""
    return Markup('<a href="#{}">{}</a>').format(target, text) if target else text


def is_number(value: object) -> bool:
    """Return whether the text of a cell begins with a number, is a dash or is empty."""
    return not re.match(r"(?![+-]?\d|< \d)[^-—]", Markup(inline(value)).striptags())


def inline(value: Any) -> str:
    """Return a value on one line: empty for None, booleans as in JSON."""
    if isinstance(value, dict):
        return ", ".join(f"{key}: {inline(each)}" for key, each in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(inline, value))
    if isinstance(value, float):
        return f"{value:.{DIGITS}g}"
    return "" if value is None else json.dumps(value) if isinstance(value, bool) else str(value)


HTML = jinja2.Environment(  # values are escaped; every page extends base.html; an unknown name is an error
    loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
    undefined=jinja2.StrictUndefined,
    autoescape=True,
)
HTML.globals |= {
    "absent": words.absent,
    "inline": inline,
    "is_number": is_number,
    "labels": words.labels,
    "legend": words.legend,
    "plain": words.plain,
    "scale_note": words.scale_note,
    "words": words.of,
}


def render(grid: TableGrid, table: Table, scale: ScaleFacts) -> str:
    """Return a table as an HTML page."""
    page = HTML.get_template("table.html")
    return page.render(scale=scale, grid=grid, table=table, hover=hover, sheets=None)


def hover(entry: Entry) -> str:
    """Return a cell's status, uncertainty, significance and runs on one line."""
    return "; ".join([told(entry), "/".join(filter(None, (entry.task, entry.checkpoint, entry.recipe)))])


def told(entry: Entry) -> str:
    """Return a cell's status, uncertainty and significance on one line."""
    parts = [entry.status]
    if entry.n_examples:
        several = int(entry.n_seeds or 0) > 1
        parts.append(f"median of {entry.n_seeds} seeds, spread {entry.spread}" if several else "one seed")
        parts.append(f"standard error {entry.stderr or 'unknown'} on {entry.n_examples} examples")
    if entry.rival:
        p = words.probability(entry.p_value) or "unknown"
        parts.append(f"against {entry.rival}: {entry.lead} ± {entry.lead_stderr or 'unknown'}, p {p}")
    return "; ".join(parts)
