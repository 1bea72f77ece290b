"""Draw the calibration samples of a seed and store the very samples, so that all methods see the same ones."""

import argparse
import hashlib
import logging

from safetensors.numpy import save_file

from flexround.io import artifacts
from flexround.jobs.runs import CalibrateJob
from flexround.machine import provenance
from flexround.tasks import protocol

log = logging.getLogger(__name__)


def run(arguments: argparse.Namespace) -> None:
    """Run the stage."""
    job = CalibrateJob.read(arguments.job)
    task = protocol.build(job.task)
    data = provenance.inputs(job.data)
    arrays = task.calibration(job.data, job.samples, job.seed)
    artifacts.atomic_write(job.out / "samples.safetensors", lambda path: save_file(arrays, path))
    artifacts.write_manifest(
        job.out,
        ["samples.safetensors"],
        place=str(job.out),
        inputs=data,
        task=job.name,
        seed=job.seed,
        samples=job.samples,
        indices_sha256=hashlib.sha256(arrays["indices"].astype("<i8").tobytes()).hexdigest(),
    )
    log.info("%s: %d samples of seed %d", job.out, job.samples, job.seed)
