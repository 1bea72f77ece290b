"""Jinja environments of LaTeX and of HTML: an unknown name is an error, and a line with only a tag leaves no blank."""

import json
import re
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from flexround.results.render import words

DIGITS = 6  # significant ones; the rest is floating-point error


def link(text: str, target: str) -> str:
    """Return a text that links to an identifier of the page; without one it is the text alone."""
    return Markup('<a href="#{}">{}</a>').format(target, text) if target else text


def bar(text: object, share: float, kind: str = "") -> Markup:
    """Return a text before a bar of ``share`` percent of its cell, which may be ``good`` or ``bad``."""
    return Markup('<span class="bar {}" style="--share: {:.0f}%">{}</span>').format(kind, share, text)


def is_number(value: object) -> bool:
    """Return whether the text of a cell begins with a number, or is none."""
    return not re.match(r"(?![+-]?\d|< \d)[^-—]", Markup(inline(value)).striptags())


def inline(value: Any) -> str:
    """Return a value in one line: nothing for None, truth values as in JSON."""
    if isinstance(value, dict):
        return ", ".join(f"{key}: {inline(each)}" for key, each in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(inline, value))
    if isinstance(value, float):
        return f"{value:.{DIGITS}g}"
    return "" if value is None else json.dumps(value) if isinstance(value, bool) else str(value)


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
    "inline": inline,
    "is_number": is_number,
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
