"""Sum up the tables of a scale in one small JSON: what ``dvc metrics show`` and ``dvc metrics diff`` read."""

import argparse

from flexround.io.artifacts import write_json
from flexround.jobs.tables import SummaryJob
from flexround.results.table_csv import summarise


def run(arguments: argparse.Namespace) -> None:
    """Run the stage."""
    job = SummaryJob.read(arguments.job)
    write_json(job.out, summarise(job.tables))
