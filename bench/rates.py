"""Find the learning rates of runs: double and halve the present rate until the best rate has two worse neighbours.

Each rate quantizes the whole network as its run does (in B, its weights), on three quarters of the calibration samples.
The best rate has the least error on the other quarter: that of the last block's output, relative to this output's
square. ``--blocks 6`` saves time: it takes the output of the sixth block. The output is a rule for the scale's file,
with its source. Make the inputs of the runs first:

    snakemake --cores all results/real8.csv --until calibrate finetune --config scale=real
    python bench/rates.py real imagenet mobilenetv2 b-flexround-w4 b-adaround-w4
    python bench/rates.py real imagenet mobilenetv2 b-flexround-w4 --iters 800 1600  # for a figure of budgets
"""

import argparse
import dataclasses
import logging
from pathlib import Path
from typing import Any

import torch

from flexround.jobs import resolve
from flexround.jobs.runs import ReconstructJob
from flexround.machine import memory
from flexround.models.surgery import attach
from flexround.reconstruct.cache import Store
from flexround.reconstruct.phases import WeightPhase
from flexround.settings.layout import Run
from flexround.settings.load import load_params
from flexround.settings.plan import Plan
from flexround.stages.reconstruct import prepared

CPU = torch.device("cpu")
HELD_OUT = 4  # parts of the samples; the last part is held out
MOST = 9  # rates tried for a run


def error(job: ReconstructJob, blocks: int | None = None) -> float:
    """Return the relative error of the last block's output, or the ``blocks``-th one's, on the held-out samples."""
    work, samples = prepared(job, CPU)
    learned, store = len(samples) - len(samples) // HELD_OUT, Store(CPU, torch.float32)
    learning, testing = (
        WeightPhase(
            dataclasses.replace(work, mask=None if work.mask is None else work.mask[part]), samples[part], store
        )
        for part in (slice(learned), slice(learned, None))
    )
    carry, held_out = learning.start(), testing.start()
    for index, block in enumerate(work.blocks[:blocks]):
        with work.weights.block(index, again=False):
            testing.full_precision(index, held_out)
            learning.full_precision(index, carry)
            carry = learning.learn(index, carry)[1]
            output = testing.forward(block, testing.before(block, held_out["quantized"]))
        held_out = {"full": held_out["target"], "quantized": output}
    real = ... if testing.job.mask is None else testing.job.mask  # (n, T), tokens that aren't padding
    full, quantized = held_out["full"][real], held_out["quantized"][real]
    return float((quantized - full).square().sum() / full.square().sum())


def keep_only(kind: str) -> None:
    """Quantize only the depthwise layers of a block, or only its other layers; the rest stays as it is."""
    layers = attach.weight_layers
    attach.weight_layers = lambda block: [
        layer for layer in layers(block) if (getattr(layer, "groups", 1) > 1) == (kind == "depthwise")
    ]


def search(job: ReconstructJob, blocks: int | None) -> dict[float, float]:
    """Return the error of each tried rate, in the order of rates; the best rate is neither the first nor the last."""
    rate, tried = _rate(job.hyper.lr), {}  # the present rate is tried first

    def at(value: float) -> None:
        hyper = job.hyper.model_copy(update={"lr": _with_rate(job.hyper.lr, value)})
        tried[value] = error(job.model_copy(update={"hyper": hyper}), blocks)
        print(f"  {value:.2g}: {tried[value]:.4f}", flush=True)

    at(rate)
    while len(tried) < MOST:
        best = _best(tried)
        if missing := [value for value in (best / 2, best * 2) if value not in tried]:
            at(missing[0])
        else:
            break
    return dict(sorted(tried.items()))


def _best(tried: dict[float, float]) -> float:
    """Return the rate with the least error."""
    return min(tried, key=lambda value: tried[value])


def _rate(lr: Any) -> float:
    """Return the rate, or the first group's rate if groups have separate rates."""
    return next(iter(lr.values())) if isinstance(lr, dict) else lr


def _with_rate(lr: Any, value: float) -> Any:
    """Return ``lr`` with another rate for the first group."""
    return lr | {next(iter(lr)): value} if isinstance(lr, dict) else value


def rule(job: ReconstructJob, tried: dict[float, float], blocks: int | None) -> str:
    """Return the rule with the best rate for the scale's file."""
    best = _with_rate(job.hyper.lr, _best(tried))
    lr = "{" + ", ".join(f"{key}: {value:.1e}" for key, value in best.items()) + "}" if isinstance(best, dict) else best
    rates, found = (
        ", ".join(format(value, form) for value in values) for values, form in ((tried, ".2g"), (tried.values(), ".3f"))
    )
    how = "bench/rates.py" + (f" --blocks {blocks}" if blocks else "")
    return f'set: {{lr: {lr}}}\nsource: "real: {job.hyper.iters} iterations at {rates}: {found} ({how})"'


def main() -> None:
    """Search the rate for each recipe."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("scale", "task", "checkpoint"):
        parser.add_argument(name)
    parser.add_argument("recipes", nargs="+")
    parser.add_argument("--iters", type=int, nargs="+", help="budgets; each begins at the best rate of the one before")
    parser.add_argument("--blocks", type=int, help="that are quantized, from the first; all by default")
    parser.add_argument("--layers", choices=("depthwise", "others"), help="that are quantized; all by default")
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    if given.layers:
        keep_only(given.layers)
    logging.basicConfig(level=logging.WARNING)
    torch.set_num_threads(given.threads)
    memory.keep_freed_memory()
    plan = Plan(load_params(given.scale))
    for recipe in given.recipes:
        run = Run(plan.scale.name, given.task, given.checkpoint, recipe, 0)
        job = ReconstructJob.read(Path(resolve.job(plan, "reconstruct", run).file))
        for iters in given.iters or [job.hyper.iters]:
            job = job.model_copy(update={"hyper": job.hyper.model_copy(update={"iters": iters})})
            print(f"{recipe}, {iters} iterations", flush=True)
            tried = search(job, given.blocks)
            print(rule(job, tried, given.blocks), flush=True)
            best = _with_rate(job.hyper.lr, _best(tried))
            job = job.model_copy(update={"hyper": job.hyper.model_copy(update={"lr": best})})


if __name__ == "__main__":
    main()
