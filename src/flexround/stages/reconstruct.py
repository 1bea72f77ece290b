"""Quantize one run: reconstruct block by block, write integer codes, steps and zero points."""

import argparse
import dataclasses
import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flexround import artifacts, imports, provenance
from flexround.devices import lease
from flexround.errors import InputError
from flexround.reconstruct import network, result
from flexround.reconstruct.engine import reconstruct
from flexround.reconstruct.preflight import preflight
from flexround.reconstruct.reconstruction import Reconstruction
from flexround.reconstruct.state import State
from flexround.seeding import derive
from flexround.settings.layout import Run
from flexround.settings.load import Params, hyper
from flexround.settings.schema import Gate, Hyper
from flexround.stages import cli
from flexround.tasks import protocol

if TYPE_CHECKING:
    import torch

log = logging.getLogger(__name__)


def parser() -> argparse.ArgumentParser:
    """Return the command line of this stage."""
    arguments = cli.run_parser(__doc__)
    arguments.add_argument("--weights", type=Path, required=True, help="directory of the full-precision checkpoint")
    arguments.add_argument("--samples", type=Path, required=True, help="directory of the calibration samples")
    arguments.add_argument("--gate", type=Path, required=True, help="metrics.json of the full-precision checkpoint")
    arguments.add_argument("--state", type=Path, default=Path(".state"), help="where unfinished work is kept")
    arguments.add_argument(
        "--cache-mb", type=int, help="host memory for activations; half of what is free if not given"
    )
    arguments.add_argument(
        "--preflight", action="store_true", help="say what memory and time it will take, and write nothing"
    )
    arguments.add_argument("--out", type=Path, required=True, help="directory of the result")
    return arguments


def run(arguments: argparse.Namespace) -> None:
    """Run the stage."""
    cli.threads(arguments.threads)
    params, identity = cli.identify(arguments)
    recipe = params.recipe(identity.recipe)
    if not recipe.setting:
        raise InputError(f"recipe {identity.recipe} quantizes nothing; evaluate the checkpoint instead")
    settings, sources = hyper(params, identity)
    log.info("%s: %s", identity, settings.model_dump_json())
    check_gate(params.gate(identity.task, identity.checkpoint), arguments.gate)
    target = params.rounding_target(recipe.rounding or "")
    inputs = {
        "weights": artifacts.read_manifest(arguments.weights, verify=False)["files"],
        "samples": artifacts.read_manifest(arguments.samples)["files"],
    }
    with lease() as device:
        job, samples = _job(params, identity, settings, arguments, device)
        directory = arguments.state / str(identity)
        host_bytes = None if arguments.cache_mb is None else arguments.cache_mb * 2**20
        if arguments.preflight:
            forecast = preflight(job, samples, directory, host_bytes)
            log.info("%s: %s", identity, json.dumps(dataclasses.asdict(forecast)))
            return
        fingerprint = _fingerprint(identity, job, inputs, target)
        with State(directory, fingerprint).opened() as state:
            records = reconstruct(job, samples, state, host_bytes)
            facts = {
                "run": vars(identity),
                "recipe": recipe.model_dump(mode="json"),
                "rounding": target,
                "hyper": settings.model_dump(mode="json"),
                "hyper_sources": sources,
                "inputs": inputs,
            }
            companions = artifacts.copy_existing(arguments.weights, arguments.out, protocol.COMPANIONS)
            result.publish(arguments.out, state, facts, companions)
            record = {"blocks": records, "environment": provenance.environment(device)}
            artifacts.write_json(arguments.out / "record.json", record)


def check_gate(gate: Gate, metrics: Path) -> None:
    """Refuse to quantize a checkpoint whose full-precision accuracy is not what it should be.

    Raises:
        InputError: outside the gate's range.
    """
    value = artifacts.read_json(metrics)["metrics"].get(gate.metric)
    if value is None or not gate.min <= value <= gate.max:
        raise InputError(
            f"{metrics}: full-precision {gate.metric} is {value}, expected {gate.min} to {gate.max}; nothing is "
            "quantized before this holds: check the checkpoint's source and the preprocessing of the data"
        )


def _job(
    params: Params, identity: Run, settings: Hyper, arguments: argparse.Namespace, device: "torch.device"
) -> tuple[Reconstruction, "torch.Tensor"]:
    """Return what is reconstructed and how, and the inputs of its first block."""
    recipe, checkpoint = params.recipe(identity.recipe), params.checkpoint(identity.checkpoint)
    task = protocol.named(params.scale, identity.task)
    model, blocks, weights = network.to_quantize(checkpoint, task.head, arguments.weights, recipe.preprocess, device)
    samples = task.inputs(_load_samples(arguments.samples, settings.samples), arguments.weights)
    if settings.mask_padding:
        samples = samples.trimmed()
    job = Reconstruction(
        model=model,
        blocks=blocks,
        weights=weights,
        recipe=recipe,
        hyper=settings,
        rounding=imports.load(params.rounding_target(recipe.rounding or "")),
        seed_parts=(identity.task, identity.checkpoint, identity.recipe, identity.seed),
        device=device,
        mask=samples.mask,
    )
    return job, samples.x


def _load_samples(directory: Path, count: int) -> dict[str, Any]:
    """Read the calibration samples.

    Raises:
        InputError: none, or not as many as the settings say.
    """
    from safetensors.numpy import load_file

    samples = load_file(directory / "samples.safetensors")
    found = len(samples["indices"])
    if found != count:
        raise InputError(f"{directory}: {found} samples, the settings say {count}; run the calibrate stage again")
    return samples


def _fingerprint(identity: Run, job: Reconstruction, inputs: dict[str, Any], target: str) -> str:
    """Return a hash of everything that decides the bits of the result, for the state directory."""
    import torch

    parts = [
        identity,
        job.recipe.model_dump_json(),
        job.hyper.model_dump_json(),
        json.dumps(inputs, sort_keys=True),
        provenance.code_hash(__spec__.name if __spec__ else __name__, target.partition(":")[0]),
        torch.__version__,
        str(job.device.type),
    ]
    return f"{derive(*parts):016x}"


if __name__ == "__main__":
    cli.main(run, parser())
