"""Jinja environments of LaTeX and of HTML: an unknown name is an error, and a line with only a tag leaves no blank."""

from pathlib import Path

import jinja2

from flexround.results.render import listing, notes, words

HTML = jinja2.Environment(  # values are escaped; every page extends base.html
    loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
    undefined=jinja2.StrictUndefined,
    autoescape=True,
)
HTML.globals |= {
    "absent": notes.absent,
    "as_cell": listing.as_cell,
    "labels": notes.labels,
    "plain": notes.plain,
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
