"""Prepare a task's data: check the raw files, write what the later stages read. Uses no network."""

import argparse
import logging

from flexround.jobs import jobfile
from flexround.tasks import protocol

log = logging.getLogger(__name__)


def run(arguments: argparse.Namespace) -> None:
    """Run the stage."""
    job = jobfile.read(jobfile.DataJob, arguments.job)
    task = protocol.build(job.task)
    task.prepare(job.out, job.sources)
    log.info("%s/%s: data in %s", job.scale, job.name, job.out)
