"""Are the budgets of a scale enough? Two checks, figures in bench/RESULTS.md.

1. In all finished runs, of each learned block: the hard error (rounded, as it is evaluated) over the soft one.
2. A sample of the runs is made again with twice the iterations, and each metric compared with what the scale's own
   budget gave, beside the standard error of the cell and that of the paired difference.

Needs finished runs: make the tables first. The reruns go to a directory of their own; a bench that was interrupted goes
on after the runs that are there.
"""

import argparse
import itertools
import logging
from collections import Counter
from pathlib import Path

import torch

from flexround import artifacts, memory
from flexround.jobs import jobfile
from flexround.jobs.jobfile import EvaluateJob, ReconstructJob
from flexround.regress import convergence
from flexround.results import paired
from flexround.results.evaluated import read_run
from flexround.settings import layout
from flexround.settings.layout import Run
from flexround.stages import evaluate, reconstruct

METHODS = ("adaround", "adaquant", "adaquant-flexround", "flexround")
RESULTS = Path("results")
SAMPLES = {  # task, checkpoint -> recipes
    "mini": {
        ("imagenet", "resnet18-brecq"): [
            *(f"b-{method}-w{bits}" for bits in (4, 3, 2) for method in METHODS),
            *(f"{setting}-{method}-{bits}" for setting in "bq" for bits in ("w4a4", "w3a3") for method in METHODS[::3]),
        ],
        ("imagenet", "resnet50-brecq"): ["b-adaround-w3", "b-flexround-w3"],
        ("imagenet", "mobilenetv2-torchvision"): ["b-adaround-w3", "b-flexround-w3"],
        ("glue-mrpc", "bert-base"): ["q-adaround-w8a8", "q-flexround-w8a8"],
        ("squad", "bert-base"): ["q-adaround-w8a8", "q-flexround-w8a8"],
        ("wikitext2", "gpt-neo-125m"): ["q-adaround-w8a8", "q-flexround-w8a8"],
        ("ptb", "opt-125m"): ["q-adaround-w8a8", "q-flexround-w8a8"],
        ("webnlg", "gpt2-medium"): ["q-adaround-w8a8", "q-flexround-w8a8"],
        ("commonsense", "llama-7b"): ["q-adaround-w8a8", "q-flexround-w8a8", "b-adaround-w4", "b-flexround-w4"],
        ("wikitext2-lora", "llama-7b"): ["b-adaround-w3", "b-flexround-w3"],
    }
}


def finished(scale: str) -> list[Run]:
    """Return the runs of a scale that were reconstructed and not chosen among others."""
    root = RESULTS / scale / "quantized"
    records = sorted(path.parent.relative_to(root).parts for path in root.glob("*/*/*/*/record.json"))
    return [Run(scale, *names, int(seed.removeprefix("seed"))) for *names, seed in records]


def ratios(runs: list[Run]) -> None:
    """Print a line for each rounding, its largest ratio of hard to soft error and where, then all above the limit."""
    every: dict[str, list[convergence.Unit]] = {}
    for run in runs:
        rounding = artifacts.read_json(Path(layout.quantized_dir(run)) / "manifest.json")["recipe"]["rounding"]
        every.setdefault(rounding, []).extend(convergence.units(run, RESULTS))
    for rounding, units in every.items():
        if units:
            worst = max(units, key=lambda unit: unit.ratio)
            print(f"{rounding}: {len(units)} blocks of {len({u.run for u in units})} runs; largest: {worst}")
    for unit in convergence.unconverged(itertools.chain(*every.values())):
        print(f"not converged: {unit}")


def twice(run: Run, out: Path) -> None:
    """Make a run again with twice the iterations and evaluate it, below ``out``."""
    evaluated = out / Path(layout.evaluated_dir(run)).relative_to("results")
    if (evaluated / "metrics.json").exists():
        return
    job = jobfile.read(ReconstructJob, layout.job_file(layout.quantized_dir(run)))
    longer = {"iters": 2 * job.hyper.iters, "a_iters": 2 * job.hyper.a_iters}
    network = out / Path(layout.quantized_dir(run)).relative_to("results")
    changes = {"hyper": job.hyper.model_copy(update=longer), "out": network}
    work = _written(job.model_copy(update=changes), out / "job.json")
    limits = {"cache_mb": None, "gpu_cache_mb": None, "state_gb": 32.0, "preflight": False, "gpus": 0}
    reconstruct.run(argparse.Namespace(job=work, state=out / "state", **limits))
    test = jobfile.read(EvaluateJob, layout.job_file(layout.evaluated_dir(run)))
    work = _written(test.model_copy(update={"network": network, "out": evaluated}), out / "job.json")
    evaluate.run(argparse.Namespace(job=work, state=out / "state", gpus=0))


def _written(job: jobfile.Job, path: Path) -> Path:
    """Write a job file; return its path."""
    artifacts.write_json(path, job.model_dump(mode="json"))
    return path


def compare(run: Run, out: Path) -> dict[str, bool]:
    """Print how far twice the iterations move each metric; return whether that is within the cell's standard error."""
    metrics = artifacts.read_json(Path(layout.evaluated_dir(run)) / "metrics.json")["metrics"]
    before, after = read_run(run, RESULTS, metrics), read_run(run, out, metrics)
    within = {}
    for name, one in before.items():
        moved, error = after[name].value - one.value, one.stderr or 0.0
        within[name] = abs(moved) <= error
        print(
            f"{run.task}/{run.checkpoint}/{run.recipe} {name}: {one.value:.2f} -> {after[name].value:.2f} "
            f"({moved:+.2f}, standard error of the cell {error:.2f}, of the difference "
            f"{paired.standard_error(after[name], one):.2f}){'' if within[name] else ' MOVED'}",
            flush=True,
        )
    return within


def main() -> None:
    """Print both checks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", default="mini")
    parser.add_argument("--tasks", nargs="+", help="of the sample; all if not given")
    parser.add_argument("--ratios-only", action="store_true", help="make nothing again")
    parser.add_argument("--out", type=Path, help="of the reruns; results/SCALE-twice if not given")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    torch.set_num_threads(1)
    memory.keep_freed_memory()
    runs = finished(arguments.scale)
    ratios(runs)
    if arguments.ratios_only:
        return
    out = arguments.out or RESULTS / f"{arguments.scale}-twice"
    counts: Counter[bool] = Counter()
    for (task, checkpoint), recipes in SAMPLES[arguments.scale].items():
        for recipe in recipes if task in (arguments.tasks or [task]) else []:
            run = Run(arguments.scale, task, checkpoint, recipe, 0)
            if run in runs:
                twice(run, out)
                counts.update(compare(run, out).values())
    print(f"{counts[True]} cells within their standard error, {counts[False]} not")


if __name__ == "__main__":
    main()
