"""Check whether the budgets of a scale are enough. Two checks; their figures are in bench/RESULTS.md.

1. For each learned block of all finished runs: the ratio of the hard error (rounded, as evaluated) to the soft error.
2. For a sample of runs, repeated with twice the iterations: the change of each metric, beside the standard errors of
   the cell and of the paired difference.

Make the tables first: the checks need finished runs. The reruns have a directory of their own; an interrupted bench
resumes after its finished runs.
"""

import argparse
import itertools
import logging
from pathlib import Path

import torch

from flexround.io import artifacts
from flexround.jobs import resolve
from flexround.jobs.runs import EvaluateJob, ReconstructJob
from flexround.machine import memory
from flexround.regress import checked_runs
from flexround.results import paired
from flexround.results.evaluated import read_run
from flexround.settings import layout
from flexround.settings.layout import Run
from flexround.settings.load import load_params
from flexround.settings.plan import Plan
from flexround.stages.evaluate import evaluate
from flexround.stages.reconstruct import reconstruct

METHODS = ("adaround", "adaquant", "adaquant-flexround", "flexround")
RESULTS = Path("results")
TEXTS = ["q-adaround-w8a8", "q-flexround-w8a8"]
SAMPLES = {  # mini's task, checkpoint -> recipes
    ("imagenet", "resnet18-brecq"): [
        *(f"b-{method}-w{bits}" for bits in (4, 3, 2) for method in METHODS),
        *(f"{setting}-{method}-{bits}" for setting in "bq" for bits in ("w4a4", "w3a3") for method in METHODS[::3]),
    ],
    ("imagenet", "resnet50-brecq"): ["b-adaround-w3", "b-flexround-w3"],
    ("imagenet", "mobilenetv2-torchvision"): ["b-adaround-w3", "b-flexround-w3"],
    ("glue-mrpc", "bert-base"): TEXTS,
    ("squad", "bert-base"): TEXTS,
    ("wikitext2", "gpt-neo-125m"): TEXTS,
    ("ptb", "opt-125m"): TEXTS,
    ("webnlg", "gpt2-medium"): TEXTS,
    ("commonsense", "llama-7b"): [*TEXTS, "b-adaround-w4", "b-flexround-w4"],
    ("wikitext2-lora", "llama-7b"): ["b-adaround-w3", "b-flexround-w3"],
}


def finished(scale: str) -> list[Run]:
    """Return the reconstructed runs of a scale, without runs chosen among candidates."""
    root = RESULTS / scale / "quantized"
    records = sorted(path.parent.relative_to(root).parts for path in root.glob("*/*/*/*/record.json"))
    return [Run(scale, *names, int(seed.removeprefix("seed"))) for *names, seed in records]


def ratios(runs: list[Run]) -> None:
    """Print the largest ratio of hard to soft error for each rounding, then all blocks above the limit."""
    every: dict[str, list[checked_runs.Unit]] = {}
    for run in runs:
        rounding = artifacts.read_json(Path(layout.quantized_dir(run)) / "manifest.json")["recipe"]["rounding"]
        every.setdefault(rounding, []).extend(checked_runs.units(run, RESULTS))
    for rounding, units in every.items():
        if units:
            worst = max(units, key=lambda unit: unit.ratio)
            print(f"{rounding}: {len(units)} blocks of {len({u.run for u in units})} runs; largest: {worst}")
    for unit in checked_runs.unconverged(itertools.chain(*every.values())):
        print(f"not converged: {unit}")


def twice(run: Run, out: Path) -> None:
    """Repeat a run with twice the iterations and evaluate it, below ``out``."""
    directories = (Path(layout.quantized_dir(run)), Path(layout.evaluated_dir(run)))
    network, evaluated = (out / directory.relative_to("results") for directory in directories)
    if (evaluated / "metrics.json").exists():
        return
    plan = Plan(load_params(run.scale))
    job = ReconstructJob.read(Path(resolve.job(plan, "reconstruct", run).file))
    hyper = job.hyper.model_copy(update={"iters": 2 * job.hyper.iters, "a_iters": 2 * job.hyper.a_iters})
    test = EvaluateJob.read(Path(resolve.job(plan, "evaluate", run).file))
    limits = {"jobs_per_gpu": 1, "gpu_cache_mb": None, "preflight": False, "confirm": lambda: None}
    for stage, changed in (
        (reconstruct, job.model_copy(update={"hyper": hyper, "out": network})),
        (evaluate, test.model_copy(update={"network": network, "out": evaluated})),
    ):
        artifacts.write_json(out / "job.json", changed.model_dump(mode="json"))
        stage(argparse.Namespace(job=out / "job.json", state=out / "state", gpus=0, **limits))


def compare(run: Run, out: Path) -> list[bool]:
    """Print each metric's shift by twice the iterations; return whether each is within the cell's standard error."""
    metrics = artifacts.read_json(Path(layout.evaluated_dir(run)) / "metrics.json")["metrics"]
    before, after = read_run(run, RESULTS, metrics), read_run(run, out, metrics)
    within = []
    for name, one in before.items():
        moved, error = after[name].value - one.value, one.stderr or 0.0
        within.append(abs(moved) <= error)
        difference = paired.difference([after[name]], [one]).stderr
        print(
            f"{run} {name}: {one.value:.2f} -> {after[name].value:.2f} ({moved:+.2f}, standard error of the cell "
            f"{error:.2f}, of the difference {difference:.2f}){'' if within[-1] else ' MOVED'}",
            flush=True,
        )
    return within


def main() -> None:
    """Print both checks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", default="mini", help="of another scale than mini the first check alone is made")
    parser.add_argument("--ratios-only", action="store_true", help="make nothing again")
    given = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    torch.set_num_threads(1)
    memory.keep_freed_memory()
    runs = finished(given.scale)
    ratios(runs)
    if given.ratios_only or given.scale != "mini":
        return
    out = RESULTS / "mini-twice"
    within: list[bool] = []
    for (task, checkpoint), recipes in SAMPLES.items():
        for run in (Run("mini", task, checkpoint, recipe, 0) for recipe in recipes):
            if run in runs:
                twice(run, out)
                within += compare(run, out)
    print(f"{sum(within)} cells within their standard error, {len(within) - sum(within)} not")


if __name__ == "__main__":
    main()
