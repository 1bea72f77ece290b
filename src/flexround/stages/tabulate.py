"""Make one table: CSV, LaTeX and HTML from the evaluated runs of a scale, or from its settings, and print it."""

import argparse
import sys

from flexround.io.artifacts import write_text
from flexround.jobs.tables import TabulateJob
from flexround.results import cells, frames, grid, table_csv
from flexround.results.render import html, latex, terminal


def run(arguments: argparse.Namespace) -> None:
    """Make the CSV, write the three files and print the table."""
    job = TabulateJob.read(arguments.job)
    table, scale = job.table, job.scale
    if table.settings:
        frame = table_csv.of_settings(job.settings, dict(job.numbers), table, scale)
    else:
        frame = table_csv.of_cells(cells.collect(table, job.scope), dict(job.numbers), table, scale)
    made = grid.of(frame)
    write_text(job.out, frames.text(frame))
    write_text(job.out.with_suffix(".tex"), latex.render(made, table, scale))
    write_text(job.out.with_suffix(".html"), html.render(made, table, scale))
    sys.stdout.write(terminal.render(made, table, scale))
