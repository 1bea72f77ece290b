"""The jobs behind a run and what each of them took."""

import dataclasses
import json
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from flexround.artifacts import read_json
from flexround.errors import InputError, SettingsError
from flexround.settings import layout
from flexround.settings.layout import Run
from flexround.settings.plan import Plan

STAGES = {  # the directory below results/SCALE in which a job's result lies -> the stage as a reader knows it
    "data": "data",
    "checkpoints": "fine-tune",
    "calibration": "calibrate",
    "quantized": "reconstruct",
    "evaluated": "evaluate",
}


class Cost(NamedTuple):
    """What a job took: wall-clock seconds, and the largest resident memory in MB (None where it wasn't recorded)."""

    seconds: float
    peak_mb: float | None


def directories(plan: Plan, run: Run) -> list[str]:
    """Return the result directories of all jobs behind a run, each once, in the order in which they are made.

    Raises:
        SettingsError: the scale does not have the run's checkpoint or recipe.
    """
    recipe, pretrain = plan.params.recipe(run.recipe), plan.params.checkpoint(run.checkpoint).pretrain
    found = []
    for task in filter(None, (pretrain, run.task)):
        found += [layout.data_dir(run.scale, task), layout.checkpoint_dir(run.scale, task, run.checkpoint)]
    if recipe.quantized:
        names = recipe.select or (run.recipe,)
        quantized = [dataclasses.replace(run, recipe=name) for name in names]
        found += [plan.gate(run), *map(plan.samples_dir, quantized)]
        found += map(layout.quantized_dir, [*quantized, run])
    return list(dict.fromkeys([*found, layout.evaluated_dir(run)]))


def stage(directory: str) -> str:
    """Return the stage whose result lies in a directory."""
    return STAGES[Path(directory).parts[2]]


def cost(root: Path, directory: str) -> Cost | None:
    """Return what a job took: by Snakemake's benchmark, else by what the stage recorded; None if neither is there.

    Args:
        root: holds ``results/`` and ``benchmarks/``.
        directory: of the job's result, as in :mod:`flexround.settings.layout`.

    Raises:
        InputError: a file that isn't what it should be.
    """
    benchmark = root / "benchmarks" / f"{Path(directory).relative_to('results')}.jsonl"
    if benchmark.exists():
        return _measured(benchmark)
    if (record := root / directory / "record.json").exists():
        blocks = read_json(record)["blocks"]
        return Cost(sum(block["seconds"] for block in blocks), max(block["peak_mb"] for block in blocks))
    if (metrics := root / directory / "metrics.json").exists():
        return Cost(read_json(metrics)["seconds"], None)
    return None


def seconds_by_stage(root: Path, plan: Plan, runs: Iterable[Run]) -> dict[str, float]:
    """Return the seconds that the jobs behind some runs took, by stage; a job that several runs need counts once.

    Raises:
        InputError: a file that isn't what it should be.
    """
    total: dict[str, float] = {}
    for directory in dict.fromkeys(directory for run in runs for directory in known_directories(plan, run)):
        if taken := cost(root, directory):
            total[stage(directory)] = total.get(stage(directory), 0.0) + taken.seconds
    return {name: total[name] for name in STAGES.values() if name in total}


def known_directories(plan: Plan, run: Run) -> list[str]:
    """Return the directories of a run's jobs; only its evaluation's if the settings no longer know the run."""
    try:
        return directories(plan, run)
    except SettingsError:
        return [layout.evaluated_dir(run)]


def _measured(path: Path) -> Cost:
    """Return what a benchmark file of Snakemake says."""
    try:
        line = json.loads(path.read_text().splitlines()[0])
        peak = line.get("max_rss")
        return Cost(float(line["s"]), float(peak) if isinstance(peak, int | float) else None)
    except (IndexError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path}: not a benchmark of Snakemake ({error!r}); delete it") from error
