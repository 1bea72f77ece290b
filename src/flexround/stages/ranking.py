"""Rank the roundings of a scale by the evaluated runs of its tables."""

import argparse
import itertools

from flexround.io.artifacts import write_text
from flexround.jobs.tables import RankingJob
from flexround.results import cells, frames, ranking


def run(arguments: argparse.Namespace) -> None:
    """Write the ranking."""
    job = RankingJob.read(arguments.job)
    found = list(itertools.chain(*(cells.collect(table, job.scope) for table in job.tables)))
    write_text(job.out, frames.text(ranking.rank(found, job.entrants, job.scale.name)))
