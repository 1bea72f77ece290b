"""Data: fetch pinned sources, prepare a task's data, draw calibration samples."""

import argparse
import logging
from pathlib import Path

from safetensors.numpy import save_file

from flexround.io import artifacts, fetchers, sources
from flexround.jobs.runs import CalibrateJob, DataJob, FetchJob
from flexround.machine import provenance
from flexround.settings import layout
from flexround.tasks import protocol

log = logging.getLogger(__name__)


def fetch(arguments: argparse.Namespace) -> None:
    """Fetch one pinned source, or verify a source supplied by hand; the only stage that uses the network.

    It writes ``SOURCE.json``, which describes the source, with the commit of a download from the Hugging Face hub.
    """
    job = FetchJob.read(arguments.job)
    source, directory = job.source, job.out.parent
    digest = sources.fetch(job.name, source, directory)
    record = {"name": job.name, "file": source.file, "revision": source.revision, "sha256": digest}
    if commit := fetchers.hub_commit(directory / source.file):
        record["commit"] = commit
    artifacts.write_json(job.out, record)
    log.info("source %s: %s is there and verified", job.name, directory / source.file)


def data(arguments: argparse.Namespace) -> None:
    """Check a task's raw files and write the data that later stages read."""
    job = DataJob.read(arguments.job)
    task = protocol.build(job.task)
    inputs = {
        layout.source_file(name): sources.verify(name, source, Path(layout.SOURCES, source.file))
        for name, source in job.origins.items()
    }
    task.prepare(job.out, Path(layout.SOURCES))
    manifest = artifacts.read_manifest(job.out, verify=False) | {"place": str(job.out), "inputs": inputs}
    artifacts.write_formatted(job.out / "manifest.json", manifest)
    log.info("%s: data in %s", job.name, job.out)


def calibrate(arguments: argparse.Namespace) -> None:
    """Draw and store a seed's calibration samples, so that all methods see the same samples."""
    job = CalibrateJob.read(arguments.job)
    task = protocol.build(job.task)
    inputs = provenance.inputs(job.data)
    arrays = task.calibration(job.data, job.samples, job.seed)
    artifacts.atomic_write(job.out / "samples.safetensors", lambda path: save_file(arrays, path))
    facts = {"place": str(job.out), "inputs": inputs, "task": job.name, "seed": job.seed, "samples": job.samples}
    artifacts.write_manifest(job.out, ["samples.safetensors"], **facts)
    log.info("%s: %d samples of seed %d", job.out, job.samples, job.seed)
