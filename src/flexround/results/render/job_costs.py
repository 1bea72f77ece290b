"""The jobs behind a run and what each of them took."""

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from flexround.errors import InputError, SettingsError
from flexround.io.artifacts import read_json
from flexround.settings import layout
from flexround.settings.layout import Run
from flexround.settings.plan import Plan

STAGES = {  # the directory below results/SCALE in which a job's result lies -> the stage as a reader knows it
    "data": "data",
    "checkpoints": "fine-tune",
    "gates": "gate",
    "calibration": "calibrate",
    "quantized": "reconstruct",
    "evaluated": "evaluate",
}


class Cost(NamedTuple):
    """What a job took; the time of all its cores and the largest resident memory are None where nothing tells them."""

    seconds: float
    cpu_seconds: float | None
    peak_mb: float | None


def directories(plan: Plan, run: Run) -> list[str]:
    """Return where the results of all jobs behind a run lie, each once, in the order in which they are made.

    A gate's is a file; its place here has no suffix. A run that the settings no longer know has its evaluation's alone.
    """
    try:
        made = list(plan.outputs(run, evaluated=True))
    except SettingsError:
        return [layout.evaluated_dir(run)]
    return list(dict.fromkeys(output.place.removesuffix(".json") for output in made))


def stage(directory: str) -> str:
    """Return the stage whose result lies in a directory."""
    return STAGES[Path(directory).parts[2]]


def cost(root: Path, directory: str) -> Cost | None:
    """Return what a job took: by its own accounting, else by what the stage recorded; None if neither is there.

    ``directory`` is that of the job's result below ``root``, as in :mod:`flexround.settings.layout`.

    Raises:
        InputError: a file that isn't what it should be.
    """
    usage = root / "logs" / f"{Path(directory).relative_to('results')}.usage.json"
    record, metrics = (root / directory / name for name in ("record.json", "metrics.json"))
    path = next((path for path in (usage, record, metrics) if path.exists()), None)
    if path is None:
        return None
    measured = read_json(path)
    try:
        if path == usage:
            return Cost(*(float(measured[name]) for name in ("seconds", "cpu_seconds", "max_rss_mb")))
        if path == metrics:
            return Cost(float(measured["seconds"]), None, None)
        seconds, peaks = ([float(block[name]) for block in measured["blocks"]] for name in ("seconds", "peak_mb"))
        return Cost(sum(seconds), None, max(peaks))
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path}: not the accounting of a job ({error!r}); delete it") from error


def seconds_by_stage(root: Path, plan: Plan, runs: Iterable[Run]) -> dict[str, float]:
    """Return the seconds that the jobs behind some runs took, by stage; a job that several runs need counts once."""
    total: dict[str, float] = defaultdict(float)
    for directory in dict.fromkeys(directory for run in runs for directory in directories(plan, run)):
        if taken := cost(root, directory):
            total[stage(directory)] += taken.seconds
    return {name: total[name] for name in STAGES.values() if name in total}
