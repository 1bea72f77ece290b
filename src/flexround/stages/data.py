"""Prepare a task's data: check the raw files, write what the later stages read. Uses no network."""

import argparse
import logging
from pathlib import Path

from flexround.io import artifacts
from flexround.jobs.data import DataJob
from flexround.settings import layout
from flexround.tasks import protocol

log = logging.getLogger(__name__)


def run(arguments: argparse.Namespace) -> None:
    """Run the stage."""
    job = DataJob.read(arguments.job)
    task = protocol.build(job.task)
    task.prepare(job.out, job.sources)
    records = {path: artifacts.read_json(Path(path))["sha256"] for path in map(layout.source_file, job.task.sources)}
    manifest = artifacts.read_manifest(job.out, verify=False) | {"place": str(job.out), "inputs": records}
    artifacts.write_formatted(job.out / "manifest.json", manifest)
    log.info("%s: data in %s", job.name, job.out)
