"""Show results: tables, the judgement of claims, the ranking, the summary."""

import argparse
import dataclasses
import io
import itertools
import sys

from flexround.io.artifacts import write_json, write_text
from flexround.jobs.tables import RESULTS, ClaimsJob, RankingJob, SummaryJob, TabulateJob
from flexround.results import cells, frames, grid, paper_numbers, sample_sizes, table_csv
from flexround.results.claims import verdicts
from flexround.results.paper_numbers import Erratum
from flexround.results.ranking import rank
from flexround.results.render import html, latex, terminal
from flexround.results.table_csv import summarise


def tabulate(arguments: argparse.Namespace) -> None:
    """Write one table as CSV, LaTeX and HTML, from evaluated runs or from settings, and print it."""
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


def claims(arguments: argparse.Namespace) -> None:
    """Judge the paper's claims as far as runs exist, and list its errata."""
    job = ClaimsJob.read(arguments.job)
    nothing = dataclasses.replace(job.scope, selected=())  # other files in the directory are no inputs of this job
    tables = {t.place: cells.collect(t, nothing if t.place in job.left_out else job.scope) for t in job.tables}
    mistakes = frames.lines(frames.read(io.StringIO(job.errata), Erratum), Erratum)
    usable = paper_numbers.without_copies(dict(job.numbers), mistakes)
    places = {name: verdicts.Place(of_table, usable) for name, of_table in tables.items()}
    figure = f"figure {job.sizes.spec.number}"
    of_figure = sample_sizes.collect(job.sizes, job.scale.name, RESULTS, made=figure not in job.left_out)
    places[figure] = verdicts.Place(*of_figure)
    comparisons = verdicts.compare(job.claims.claims, places, job.file)
    frame = verdicts.judged(comparisons, job.budgets, job.claims)
    write_text(job.out, frames.text(frame))
    write_text(job.out.with_name("errata.csv"), job.errata)


def ranking(arguments: argparse.Namespace) -> None:
    """Rank a scale's roundings by the evaluated runs of its tables."""
    job = RankingJob.read(arguments.job)
    found = list(itertools.chain(*(cells.collect(table, job.scope) for table in job.tables)))
    write_text(job.out, frames.text(rank(found, job.entrants, job.scale.name)))


def summary(arguments: argparse.Namespace) -> None:
    """Sum up the tables in one small JSON for ``dvc metrics show`` and ``dvc metrics diff``."""
    job = SummaryJob.read(arguments.job)
    write_json(job.out, summarise(job.tables))
