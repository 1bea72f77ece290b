"""Prepare a task's data: check the raw files, write what the later stages read. Uses no network."""

import argparse
import logging

from flexround.io import artifacts, sources
from flexround.jobs.runs import DataJob
from flexround.settings import layout
from flexround.tasks import protocol

log = logging.getLogger(__name__)


def run(arguments: argparse.Namespace) -> None:
    """Run the stage."""
    job = DataJob.read(arguments.job)
    task = protocol.build(job.task)
    inputs = {
        layout.source_file(name): sources.verify(name, source, job.sources / source.file)
        for name, source in job.origins.items()
    }
    task.prepare(job.out, job.sources)
    manifest = artifacts.read_manifest(job.out, verify=False) | {"place": str(job.out), "inputs": inputs}
    artifacts.write_formatted(job.out / "manifest.json", manifest)
    log.info("%s: data in %s", job.name, job.out)
