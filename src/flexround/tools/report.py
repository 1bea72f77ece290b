"""Gather all existing tables and figures into one HTML page with the origin of every number, or into LaTeX."""

import argparse
import logging
import os
from pathlib import Path

from flexround.io.artifacts import write_text
from flexround.results.render import document, figure_style, report_page
from flexround.settings import user_rows
from flexround.settings.plan import Plan
from flexround.tools import cli

log = logging.getLogger(__name__)


def parser() -> argparse.ArgumentParser:
    """Return the command line of this program."""
    arguments = cli.parser(__doc__)
    arguments.add_argument("--root", type=Path, default=Path(), help="directory with results and logs")
    arguments.add_argument("--own", metavar="FILE", help="your recipes and rows, as in --config own=FILE")
    arguments.add_argument("--out", type=Path, required=True, help="the page.html, or the document.tex")
    return arguments


def run(arguments: argparse.Namespace) -> None:
    """Write the page or the document from existing results; nothing is computed."""
    root, out = arguments.root, arguments.out
    plan = Plan(user_rows.configured(arguments.scale, arguments.own))
    user_rows.claim(plan.scale.name, arguments.scale, root)
    if out.suffix == ".tex":
        figures = os.path.relpath(root / "results" / plan.scale.name, out.parent)
        write_text(out, document.source(root, plan, figures))
        for name, figure in document.drawn(root, plan).items():
            figure_style.save(figure, out.with_name(f"{name}.pdf"))
    else:
        write_text(out, report_page.render(root, plan, arguments.own))
    log.info("%s: %.1f MB", out, out.stat().st_size / 1e6)


if __name__ == "__main__":
    cli.main(run, parser())
