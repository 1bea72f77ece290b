"""Read one evaluated run: ``metrics.json`` and the per-example scores beside it."""

import dataclasses
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file

from flexround.artifacts import read_json
from flexround.errors import InputError
from flexround.settings.layout import Run, evaluated_dir

METRICS = "metrics.json"
PREDICTIONS = "predictions.safetensors"
STALE = 0.01  # percentage points; metrics.json may be rounded, a foreign predictions file is further off


@dataclasses.dataclass(frozen=True)
class Trial:
    """One metric of one evaluated run, in the unit of the table (percent for accuracies)."""

    directory: Path
    metric: str
    value: float
    stderr: float | None
    n_examples: int
    higher_is_better: bool

    def replicates(self) -> np.ndarray | None:
        """Return the metric on shared bootstrap resamples, float64 (R,) in its unit; None where there are none."""
        return self._stored("replicates")

    def scores(self) -> np.ndarray | None:
        """Return the per-example scores, float64 of shape (n_examples,) in percent; None where there are none.

        Raises:
            InputError: the file is damaged, or the scores are not those of ``metrics.json``.
        """
        if (stored := self._stored("scores")) is None:
            return None
        scores = 100.0 * stored.astype(np.float64)
        if scores.shape != (self.n_examples,) or abs(scores.mean() - self.value) > STALE:
            raise InputError(
                f"{self.directory / PREDICTIONS}: {self.metric} has shape {scores.shape} and mean {scores.mean():.2f}, "
                f"{METRICS} says {self.n_examples} examples and {self.value:.2f}; delete the directory and evaluate "
                "the run again"
            )
        return scores

    def _stored(self, kind: str) -> np.ndarray | None:
        """Return one array of this metric from the predictions file."""
        path = self.directory / PREDICTIONS
        try:
            return load_file(path).get(f"{kind}/{self.metric}") if path.exists() else None
        except SafetensorError as error:
            raise InputError(f"{path}: damaged ({error}); delete its directory and evaluate the run again") from error


def read_run(run: Run, root: Path, metrics: Iterable[str]) -> dict[str, Trial]:
    """Return metrics of a run that is evaluated under the results directory ``root``; none if it isn't yet.

    Raises:
        InputError: the file isn't JSON or belongs to another run, lacks a metric or a fact of one, or isn't finite.
    """
    path = directory(run, root) / METRICS
    if not path.exists():
        return {}
    content = read_json(path)
    if content.get("run") != dataclasses.asdict(run):
        raise InputError(f"{path}: holds the run {content.get('run')}, not {run}; delete it and evaluate {run} again")
    return {metric: _trial(content, run, path, metric) for metric in metrics}


def _trial(content: dict[str, Any], run: Run, path: Path, metric: str) -> Trial:
    """Return one metric of a run's ``metrics.json``."""
    try:
        facts = Trial(
            directory=path.parent,
            metric=metric,
            value=float(content["metrics"][metric]),
            stderr=content.get("stderr", {}).get(metric),
            n_examples=int(content["n_examples"][metric]),
            higher_is_better=bool(content["higher_is_better"][metric]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path}: {metric}: {error!r}; delete the file and evaluate {run} again") from error
    for name, number in (("metrics", facts.value), ("stderr", facts.stderr)):
        if number is not None and not math.isfinite(number):
            raise InputError(f"{path}: {name}.{metric} = {number}; find out why {run} gave it, then evaluate it again")
    return facts


def directory(run: Run, root: Path) -> Path:
    """Return where a run's evaluation lies, given the results directory of all scales."""
    return root / Path(evaluated_dir(run)).relative_to("results")
