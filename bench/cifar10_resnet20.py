"""A pretrained network that the paper does not use, through the public API: accuracies over seeds and a paired test.

Needs results/sources/cifar10/{train,val} and the weights; see bench/RESULTS.md for the commands. Results are appended
to a JSON-lines file, one line per run, so that an interrupted bench goes on where it was.
"""

import argparse
import copy
import json
import logging
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import resnet20
import torch
from torch import nn

from flexround import artifacts, imports, memory
from flexround.models.checkpoints import load_into, read_foreign
from flexround.reconstruct.engine import reconstruct
from flexround.reconstruct.reconstruction import Reconstruction
from flexround.reconstruct.state import State
from flexround.reconstruct.weights import Resident
from flexround.settings.layout import Run, data_dir
from flexround.settings.load import Params, hyper, load_params
from flexround.surgery.fold_bn import fold_batch_norm
from flexround.tasks import protocol

SCALE = Path(__file__).with_name("cifar10.yaml")
DATA = Path(data_dir("cifar10", "cifar10"))
RECIPES = [f"b-{rounding}-w{bits}" for bits in (4, 3, 2) for rounding in ("rtn", "adaround", "flexround")]
RECIPES += ["b-rtn-w4a4", "q-adaround-w4a4", "q-flexround-w4a4"]


def network(weights: Path) -> nn.Module:
    """Return the folded full-precision network."""
    model = resnet20.resnet20()
    load_into(model, read_foreign(weights), str(weights))
    fold_batch_norm(model.eval())
    return model


def run_one(params: Params, task: protocol.Task, base: nn.Module, recipe_name: str, seed: int) -> dict[str, Any]:
    """Quantize and evaluate; return accuracy, seconds, iterations and per-image scores."""
    recipe = params.recipe(recipe_name)
    settings, _ = hyper(params, Run("cifar10", "cifar10", "resnet20", recipe_name, seed))
    samples = task.inputs(task.calibration(DATA, settings.samples, seed), DATA).x
    model = copy.deepcopy(base)
    blocks = resnet20.blocks(model)
    job = Reconstruction(
        model=model,
        blocks=blocks,
        weights=Resident(blocks),
        recipe=recipe,
        hyper=settings,
        rounding=imports.load(params.rounding_target(recipe.rounding or "")),
        seed_parts=("cifar10", "resnet20", recipe_name, seed),
        device=torch.device("cpu"),
    )
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as directory, State(Path(directory) / "run", "bench").opened() as state:
        records = reconstruct(job, samples, state)
    seconds = time.perf_counter() - start
    found = task.evaluate(model, DATA, torch.device("cpu"), 500, DATA, "validation")
    return {
        "recipe": recipe_name,
        "seed": seed,
        "top1": found.metrics["top1"],
        "seconds": seconds,
        "iterations": sum(record.get("iterations", 0) for record in records),
        "threads": torch.get_num_threads(),
        "wrong": np.flatnonzero(found.scores["top1"] == 0).tolist(),
    }


def summarise(lines: list[dict[str, Any]]) -> None:
    """Print mean accuracy per recipe, and FlexRound against AdaRound paired over images and seeds."""
    by_recipe: dict[str, dict[int, dict[str, Any]]] = {}
    for line in lines:
        by_recipe.setdefault(line["recipe"], {})[line["seed"]] = line
    for name, seeds in by_recipe.items():
        values = [line["top1"] for line in seeds.values()]
        spent = sum(line["seconds"] for line in seeds.values())
        steps = sum(line["iterations"] for line in seeds.values())
        pace = f"{1e3 * spent / steps:6.2f} ms an iteration" if steps else ""
        print(f"{name:<20} mean {statistics.mean(values):6.2f}  seeds {values}  {pace}")
    for name, seeds in by_recipe.items():
        other = by_recipe.get(name.replace("flexround", "adaround"), {})
        common = sorted(seeds.keys() & other.keys())
        if "flexround" in name and common:
            gain = np.mean([_hits(seeds[seed]) - _hits(other[seed]) for seed in common], axis=0)
            error = 100 * gain.std(ddof=1) / len(gain) ** 0.5
            print(f"{name} - AdaRound: {100 * gain.mean():+.2f} points, paired standard error {error:.2f}")


def _hits(line: dict[str, Any]) -> np.ndarray:
    """Return 1 for each right image, 0 for each wrong one."""
    hits = np.ones(10_000)
    hits[line["wrong"]] = 0
    return hits


def main() -> None:
    """Run what is not in the results file yet, then print the summary."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--weights", type=Path, required=True, help="resnet20-12fca82f.th")
    parser.add_argument("--out", type=Path, default=Path("results/cifar10/resnet20.jsonl"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--recipes", nargs="+", default=RECIPES)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    torch.set_num_threads(arguments.threads)
    memory.keep_freed_memory()
    params = load_params(str(SCALE))
    task = protocol.named(params.scale, "cifar10")
    base = network(arguments.weights)
    whole = task.evaluate(base, DATA, torch.device("cpu"), 500, DATA, "validation")
    print(f"full precision {whole.metrics['top1']:.2f}")
    lines = [json.loads(line) for line in arguments.out.read_text().splitlines()] if arguments.out.exists() else []
    done = {(line["recipe"], line["seed"]) for line in lines}
    for seed in arguments.seeds:
        for name in arguments.recipes:
            if (name, seed) not in done:
                lines.append(run_one(params, task, base, name, seed))
                artifacts.write_text(arguments.out, "".join(json.dumps(line) + "\n" for line in lines))
    summarise(lines)


if __name__ == "__main__":
    main()
