"""Jinja environments of LaTeX and of HTML: an unknown name is an error, and a line with only a tag leaves no blank."""

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import jinja2

from flexround.results.render import words


class Cell(NamedTuple):
    """A cell of a listing in HTML: its text, the identifier on the page that it links to, and the bar behind it."""

    text: str
    link: str = ""
    share: int | None = None  # length of the bar in percent of the cell
    kind: str = ""  # whether the bar is "good" or "bad"

    @property
    def is_number(self) -> bool:
        """Whether the text begins with a number, or is none."""
        return not re.match(r"(?![+-]?\d)[^-—]", self.text)

    def __str__(self) -> str:
        return self.text


def as_cell(value: Any) -> Cell:
    """Return a value as a cell: nothing for None, facts in one line, truth values as in JSON."""
    return value if isinstance(value, Cell) else Cell(_inline(value))


def _inline(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, dict):
        return ", ".join(f"{key}: {_inline(each)}" for key, each in value.items())
    if isinstance(value, list):
        return ", ".join(map(_inline, value))
    return json.dumps(value) if isinstance(value, bool) else str(value)


HTML = jinja2.Environment(  # values are escaped; every page extends base.html
    loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
    undefined=jinja2.StrictUndefined,
    autoescape=True,
)
HTML.globals |= {
    "absent": words.absent,
    "as_cell": as_cell,
    "labels": words.labels,
    "legend": words.legend,
    "plain": words.plain,
    "scale_note": words.scale_note,
    "words": words.of,
}
LATEX = HTML.overlay(  # << >> and <% %>, because braces are LaTeX's own
    block_start_string="<%",
    block_end_string="%>",
    variable_start_string="<<",
    variable_end_string=">>",
    comment_start_string="<#",
    comment_end_string="#>",
    autoescape=False,
)
