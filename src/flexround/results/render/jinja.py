"""Jinja environments of LaTeX and of HTML: an unknown name is an error, and a line with only a tag leaves no blank."""

from pathlib import Path

import jinja2


def latex(directory: Path | None = None) -> jinja2.Environment:
    """Return the environment of LaTeX: ``<< >>`` and ``<% %>``, because braces are LaTeX's own.

    Args:
        directory: of templates that are files.
    """
    return _environment(
        directory,
        block_start_string="<%",
        block_end_string="%>",
        variable_start_string="<<",
        variable_end_string=">>",
        comment_start_string="<#",
        comment_end_string="#>",
    )


def html(directory: Path | None = None) -> jinja2.Environment:
    """Return the environment of HTML, in which values are escaped.

    Args:
        directory: of templates that are files.
    """
    return _environment(directory, autoescape=True)


def _environment(directory: Path | None, **options: object) -> jinja2.Environment:
    return jinja2.Environment(
        loader=None if directory is None else jinja2.FileSystemLoader(directory),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
        **options,  # type: ignore[arg-type]
    )
