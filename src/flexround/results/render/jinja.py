"""Jinja environments of LaTeX and of HTML: an unknown name is an error, and a line with only a tag leaves no blank."""

from pathlib import Path

import jinja2

TEMPLATES = Path(__file__).parent / "templates"


def latex() -> jinja2.Environment:
    """Return the environment of LaTeX: ``<< >>`` and ``<% %>``, because braces are LaTeX's own."""
    return _environment(
        block_start_string="<%",
        block_end_string="%>",
        variable_start_string="<<",
        variable_end_string=">>",
        comment_start_string="<#",
        comment_end_string="#>",
    )


def html() -> jinja2.Environment:
    """Return the environment of HTML, in which values are escaped; every page extends ``base.html``."""
    return _environment(autoescape=True)


def _environment(**options: object) -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
        **options,  # type: ignore[arg-type]
    )
