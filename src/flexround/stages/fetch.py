"""Fetch one pinned source, the only stage that uses the network; what was put there by hand is verified alike.

Writes ``SOURCE.json``, which says what is there, with the commit of what was downloaded from the Hugging Face hub.
"""

import argparse
import logging

from flexround.io import artifacts, fetchers, sources
from flexround.jobs.runs import FetchJob

log = logging.getLogger(__name__)


def run(arguments: argparse.Namespace) -> None:
    """Run the stage."""
    job = FetchJob.read(arguments.job)
    source, directory = job.source, job.out.parent
    digest = sources.fetch(job.name, source, directory)
    record = {"name": job.name, "file": source.file, "revision": source.revision, "sha256": digest}
    if commit := fetchers.hub_commit(directory / source.file):
        record["commit"] = commit
    artifacts.write_json(job.out, record)
    log.info("source %s: %s is there and verified", job.name, directory / source.file)
