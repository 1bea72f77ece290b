"""Evaluate networks: a single run, a full-precision network's gate, the choice among quantized networks."""

import argparse
import logging
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.numpy import save_file

from flexround.errors import InputError
from flexround.io import artifacts, resume
from flexround.jobs.jobfile import MeasuredJob
from flexround.jobs.runs import EvaluateJob, GateJob, SelectJob
from flexround.machine import hardware, precision, provenance
from flexround.machine.devices import lease
from flexround.reconstruct import network
from flexround.settings.schema import EVALUATED
from flexround.tasks import protocol
from flexround.tasks.protocol import Evaluation, Split

log = logging.getLogger(__name__)


def evaluate(arguments: argparse.Namespace) -> None:
    """Evaluate one run: metrics, counts and standard errors as JSON, per-example scores in a second file."""
    job = EvaluateJob.read(arguments.job)
    with lease(arguments.gpus, arguments.jobs_per_gpu) as device:
        start = time.perf_counter()
        weights, data = provenance.inputs(job.network, verify=False), provenance.inputs(job.data, verify=False)
        smaller = f"evaluated: bfloat16 (now {job.checkpoint.evaluated}) in the checkpoint's settings"
        state = arguments.state / "evaluate" / resume.fingerprint(device, job.identity, weights | data)
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
    artifacts.atomic_write(job.out / "predictions.safetensors", lambda path: save_file(arrays, path))
    facts["predictions"] = {"sha256": artifacts.sha256(job.out / "predictions.safetensors")}
    artifacts.write_formatted(job.out / "metrics.json", facts)  # exists only when all files are complete
    log.info("%s: %s", job.run, " ".join(f"{name}={value:.2f}" for name, value in found.metrics.items()))


def measured(
    job: MeasuredJob,
    source: Path,
    device: torch.device,
    quantized: bool,
    steps: Sequence[str] = (),
    split: Split = "validation",
) -> Evaluation:
    """Return the evaluation of the network in ``source``, with the surgery ``steps`` applied.

    Raises:
        InputError: a file of the data or of the network contradicts its manifest.
    """
    artifacts.read_manifest(job.data)
    task, checkpoint = protocol.build(job.task), job.checkpoint
    load = network.quantized if quantized else network.prepared
    kind = getattr(torch, checkpoint.evaluated)
    model = load(checkpoint, task.head, source, steps, device, kind).to(device)
    with precision.autocast(kind, device):
        return task.evaluate(model, job.data, device, EVALUATED, source, split)


def gate(arguments: argparse.Namespace) -> None:
    """Pass or stop a full-precision network: no network is quantized before its metric is within its bounds.

    The rule depends on the weights, the data and the bounds, and on purpose on no code: an edit of the evaluation must
    not invalidate networks that took GPU days.

    Raises:
        InputError: the network is outside its bounds, or another network is in its directory.
    """
    job = GateJob.read(arguments.job)
    made_of = provenance.inputs(job.weights, verify=False) | provenance.inputs(job.data, verify=False)
    with lease(arguments.gpus, arguments.jobs_per_gpu) as device:
        values = measured(job, job.weights, device, quantized=False).metrics
    gate, value = job.gate, values[job.gate.metric]
    if not gate.min <= value <= gate.max:
        raise InputError(
            f"{job.weights}: full-precision {gate.metric} is {value}, expected {gate.min} to {gate.max}; nothing is "
            "quantized before this holds: check the checkpoint's source and the preprocessing of the data"
        )
    # The file omits the bounds: if only they change, the file and all later results stay the same.
    facts = {"place": str(job.out), "names": job.names, "inputs": made_of, "metrics": values}
    artifacts.write_formatted(job.out, facts)
    log.info("%s: %s = %.2f passes", "/".join(job.names), gate.metric, value)


def select(arguments: argparse.Namespace) -> None:
    """Choose the best of several quantized networks on held-out training data, never on the test set.

    The task's first metric decides; among equally good candidates the first one wins.
    """
    job = SelectJob.read(arguments.job)
    values: dict[str, float] = {}
    manifests = {recipe: artifacts.read_manifest(source, verify=False) for recipe, source in job.networks.items()}
    for recipe, source in job.networks.items():
        with lease(arguments.gpus, arguments.jobs_per_gpu) as device:
            found = measured(job, source, device, quantized=True, split="heldout")
        metric, values[recipe] = next(iter(found.metrics.items()))
    best = (max if found.higher_is_better[metric] else min)(values, key=lambda name: values[name])
    for name in manifests[best]["files"]:
        artifacts.link(job.networks[best] / name, job.out / name)
    chosen = {"recipe": best, "metric": metric, "heldout": values}
    made_of = {str(job.networks[best]): manifests[best]["files"]}
    facts = {"place": str(job.out), "inputs": made_of, "run": vars(job.run), "selected": chosen}
    artifacts.write_formatted(job.out / "manifest.json", manifests[best] | facts)
    log.info("%s: %s of %s", job.run, best, values)
