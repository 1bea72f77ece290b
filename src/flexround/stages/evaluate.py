"""Evaluate one run: metrics, counts and standard errors as JSON, per-example scores beside it."""

import argparse
import logging
import time
from pathlib import Path
from typing import Any

from flexround import artifacts, provenance
from flexround.devices import lease
from flexround.errors import SettingsError
from flexround.reconstruct import network
from flexround.stages import cli
from flexround.tasks import protocol

log = logging.getLogger(__name__)


def parser() -> argparse.ArgumentParser:
    """Return the command line of this stage."""
    arguments = cli.run_parser(__doc__)
    arguments.add_argument(
        "--weights", type=Path, help="directory of the checkpoint, for recipes that quantize nothing"
    )
    arguments.add_argument("--quantized", type=Path, help="directory of the quantized network, for all other recipes")
    arguments.add_argument("--data", type=Path, required=True, help="directory of the prepared data")
    arguments.add_argument(
        "--out", type=Path, required=True, help="directory of metrics.json and predictions.safetensors"
    )
    return arguments


def run(arguments: argparse.Namespace) -> None:
    """Run the stage."""
    cli.threads(arguments.threads)
    params, identity = cli.identify(arguments)
    recipe, checkpoint = params.recipe(identity.recipe), params.checkpoint(identity.checkpoint)
    task = protocol.named(params.scale, identity.task)
    source = arguments.quantized if recipe.quantized else arguments.weights
    if source is None:
        needed = "--quantized" if recipe.quantized else "--weights"
        raise SettingsError(f"recipe {identity.recipe} needs {needed}")
    with lease() as device:
        load = network.quantized if recipe.quantized else network.prepared
        model = network.lower(load(checkpoint, task.head, source, recipe.preprocess), checkpoint.evaluated).to(device)
        start = time.perf_counter()
        with network.products(checkpoint.evaluated, device):
            found = task.evaluate(model, arguments.data, device, cli.BATCH, source, "validation")
        facts = {
            "run": vars(identity),
            "metrics": found.metrics,
            "stderr": found.stderr,
            "n_examples": found.n_examples,
            "higher_is_better": found.higher_is_better,
            "protocol": found.protocol,
            "precision": checkpoint.evaluated,
            "inputs": {
                "model": artifacts.read_manifest(source, verify=False)["files"],
                "data": artifacts.read_manifest(arguments.data, verify=False)["files"],
            },
            "environment": provenance.environment(device),
            "seconds": time.perf_counter() - start,
        }
    kinds = {"scores": found.scores, "replicates": found.replicates, "predictions": found.predictions}
    arrays = {f"{kind}/{name}": array for kind, of_kind in kinds.items() for name, array in of_kind.items()}
    _write(arguments.out, arrays, facts)
    log.info("%s: %s", identity, " ".join(f"{name}={value:.2f}" for name, value in found.metrics.items()))


def _write(out: Path, arrays: dict[str, Any], facts: dict[str, Any]) -> None:
    """Write the arrays, then the metrics: metrics.json is there only when everything is."""
    from safetensors.numpy import save_file

    artifacts.atomic_write(out / "predictions.safetensors", lambda path: save_file(arrays, path))
    facts["predictions"] = {"sha256": artifacts.sha256(out / "predictions.safetensors")}
    artifacts.write_json(out / "metrics.json", facts)


if __name__ == "__main__":
    cli.main(run, parser())
