"""Evaluate one run: metrics, counts and standard errors as JSON, per-example scores beside it."""

import argparse
import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.numpy import save_file

from flexround.io import artifacts, resume
from flexround.jobs.jobfile import MeasuredJob
from flexround.jobs.runs import EvaluateJob
from flexround.machine import hardware, precision, provenance
from flexround.machine.devices import lease
from flexround.reconstruct import network
from flexround.settings.cost import EVALUATED
from flexround.tasks import protocol
from flexround.tasks.protocol import Evaluation, Split

log = logging.getLogger(__name__)


def run(arguments: argparse.Namespace) -> None:
    """Run the stage."""
    job = EvaluateJob.read(arguments.job)
    with lease(arguments.gpus, arguments.jobs_per_gpu) as device:
        start = time.perf_counter()
        weights, data = provenance.inputs(job.network, verify=False), provenance.inputs(job.data, verify=False)
        smaller = f"evaluated: bfloat16 (now {job.checkpoint.evaluated}) in the checkpoint's settings"
        state = arguments.state / "evaluate" / resume.fingerprint(job, weights | data, device)
        with resume.kept(state), hardware.enough(str(job.run), smaller):
            found = measured(job, job.network, device, job.recipe.quantized, job.recipe.preprocess)
            arguments.confirm()
        facts = {
            "place": str(job.out),
            "run": vars(job.run),
            "metrics": found.metrics,
            "stderr": found.stderr,
            "n_examples": found.n_examples,
            "higher_is_better": found.higher_is_better,
            "protocol": found.protocol,
            "precision": job.checkpoint.evaluated,
            "inputs": weights | data,
            "environment": provenance.environment(device),
            "seconds": time.perf_counter() - start,
        }
    kinds = {"scores": found.scores, "replicates": found.replicates, "predictions": found.predictions}
    arrays = {f"{kind}/{name}": array for kind, of_kind in kinds.items() for name, array in of_kind.items()}
    _write(job.out, arrays, facts)
    log.info("%s: %s", job.run, " ".join(f"{name}={value:.2f}" for name, value in found.metrics.items()))


def measured(
    job: MeasuredJob,
    source: Path,
    device: torch.device,
    quantized: bool,
    steps: Sequence[str] = (),
    split: Split = "validation",
) -> Evaluation:
    """Return what the evaluation of the network in ``source`` finds, to which the surgery ``steps`` was done.

    Raises:
        InputError: a file of the data or of the network isn't what its manifest says.
    """
    artifacts.read_manifest(job.data)
    task, checkpoint = protocol.build(job.task), job.checkpoint
    load = network.quantized if quantized else network.prepared
    kind = getattr(torch, checkpoint.evaluated)
    model = load(checkpoint, task.head, source, steps, device, kind).to(device)
    with precision.autocast(kind, device):
        return task.evaluate(model, job.data, device, EVALUATED, source, split)


def _write(out: Path, arrays: dict[str, Any], facts: dict[str, Any]) -> None:
    """Write the arrays, then the metrics: metrics.json is there only when everything is."""
    artifacts.atomic_write(out / "predictions.safetensors", lambda path: save_file(arrays, path))
    facts["predictions"] = {"sha256": artifacts.sha256(out / "predictions.safetensors")}
    artifacts.write_formatted(out / "metrics.json", facts)
