"""The jobs behind a run and how long each of them took."""

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from flexround.errors import SettingsError
from flexround.io.artifacts import read_json
from flexround.settings import layout, outputs
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


def directories(plan: Plan, run: Run) -> list[str]:
    """Return where the results of all jobs behind a run lie, each once, in the order in which they are made.

    A gate's is a file; its place here has no suffix. A run that the settings no longer know has its evaluation's alone.
    """
    try:
        made = list(outputs.of_run(plan, run, evaluated=True))
    except SettingsError:
        return [layout.evaluated_dir(run)]
    return list(dict.fromkeys(output.place.removesuffix(".json") for output in made))


def stage(directory: str) -> str:
    """Return the stage whose result lies in a directory."""
    return STAGES[Path(directory).parts[2]]


def seconds(root: Path, directory: str) -> float:
    """Return how long a job took: by its own accounting, else by what the stage recorded; 0 if neither is there.

    ``directory`` is that of the job's result below ``root``, as in :mod:`flexround.settings.layout`.
    """
    usage = root / "logs" / f"{Path(directory).relative_to('results')}.usage.json"
    for path in (usage, root / directory / "record.json", root / directory / "metrics.json"):
        if path.exists():
            found = read_json(path)
            return sum(part["seconds"] for part in found.get("blocks", [found]))
    return 0.0


def seconds_by_stage(root: Path, plan: Plan, runs: Iterable[Run]) -> dict[str, float]:
    """Return the seconds that the jobs behind some runs took, by stage; a job that several runs need counts once."""
    total: dict[str, float] = defaultdict(float)
    for directory in dict.fromkeys(directory for run in runs for directory in directories(plan, run)):
        total[stage(directory)] += seconds(root, directory)
    return {name: total[name] for name in STAGES.values() if total[name]}
