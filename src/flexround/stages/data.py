"""Prepare a task's data: check the raw files, write what the later stages read. Uses no network."""

import argparse
import logging

from flexround import artifacts
from flexround.jobs import jobfile
from flexround.tasks import protocol

log = logging.getLogger(__name__)


def run(arguments: argparse.Namespace) -> None:
    """Run the stage."""
    job = jobfile.read(jobfile.DataJob, arguments.job)
    task = protocol.build(job.task)
    task.prepare(job.out, job.sources)
    records = {name: artifacts.read_json(job.sources / f"{name}.json")["sha256"] for name in job.task.sources}
    manifest = artifacts.read_manifest(job.out, verify=False)
    facts = {"scale": job.scale, "task": job.name, "sources": records}
    artifacts.write_formatted(job.out / "manifest.json", manifest | facts)
    log.info("%s/%s: data in %s", job.scale, job.name, job.out)
