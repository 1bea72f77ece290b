"""Gather all tables and figures that are there into one PDF, in the paper's order."""

import argparse
import logging
import os
from pathlib import Path

from flexround.io.artifacts import write_text
from flexround.results.render import document
from flexround.settings.load import load_params
from flexround.settings.plan import Plan
from flexround.tools import cli

log = logging.getLogger(__name__)


def parser() -> argparse.ArgumentParser:
    """Return the command line of this program."""
    arguments = cli.parser(__doc__)
    arguments.add_argument("--root", type=Path, default=Path(), help="directory with results")
    arguments.add_argument("--out", type=Path, required=True, help="the PDF; its source is written beside it as .tex")
    return arguments


def run(arguments: argparse.Namespace) -> None:
    """Run the program; nothing is computed that isn't there.

    Raises:
        InputError: pdflatex or one of its packages is missing.
    """
    plan = Plan(load_params(arguments.scale))
    figures = os.path.relpath(arguments.root / "results" / plan.scale.name, arguments.out.parent)
    source = arguments.out.with_suffix(".tex")
    write_text(source, document.source(arguments.root, plan, figures))
    document.compile_pdf(source)
    log.info("%s", arguments.out)


if __name__ == "__main__":
    cli.main(run, parser())
