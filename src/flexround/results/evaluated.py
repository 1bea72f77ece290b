"""Read one evaluated run: ``metrics.json`` and the per-example scores beside it."""

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat
from safetensors.numpy import load_file

from flexround.errors import InputError
from flexround.io.artifacts import read_json, sha256
from flexround.settings.layout import Run, evaluated_dir

METRICS = "metrics.json"
PREDICTIONS = "predictions.safetensors"
EXACT = 1e-9  # relative tolerance for sums in another order
Arrays = Mapping[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Trial:
    """One metric of one evaluated run, in the unit of the table (percent for accuracies)."""

    directory: Path
    metric: str
    value: float
    stderr: float | None
    n_examples: int

    def replicates(self) -> np.ndarray | None:
        """Return the metric on shared bootstrap resamples, float64 (R,) in its unit; None if none are stored."""
        return _stored(self.directory / PREDICTIONS).get(f"replicates/{self.metric}")

    def scores(self) -> np.ndarray | None:
        """Return the per-example scores, float64 of shape (n_examples,) in percent; None if none are stored."""
        scores = _stored(self.directory / PREDICTIONS).get(f"scores/{self.metric}")
        return None if scores is None else 100.0 * scores.astype(np.float64)


class _Listed(BaseModel):
    """The entry of ``metrics.json`` about the file of predictions."""

    sha256: str


class Evaluated(BaseModel):
    """The keys of ``metrics.json`` from which numbers are read; see ``tasks.protocol.Evaluation``."""

    model_config = ConfigDict(strict=True)
    run: dict[str, str | int]
    metrics: dict[str, FiniteFloat]
    stderr: dict[str, Annotated[FiniteFloat, Field(ge=0)]] = {}
    n_examples: dict[str, Annotated[int, Field(gt=0)]]
    predictions: _Listed


def read_run(run: Run, root: Path, wanted: Iterable[str]) -> dict[str, Trial]:
    """Return the wanted metrics of a run under the results directory ``root``; empty if the run isn't evaluated.

    Raises:
        InputError: the predictions have another sha256.
    """
    path = directory(run, root) / METRICS
    if not path.exists():
        return {}
    facts = read(path)
    return {
        name: Trial(path.parent, name, facts.metrics[name], facts.stderr.get(name), facts.n_examples[name])
        for name in wanted
    }


def read(path: Path) -> Evaluated:
    """Read a ``metrics.json``.

    Raises:
        InputError: the predictions beside it have another sha256.
        ValidationError: a key is missing, or a value has another type.
    """
    facts = Evaluated.model_validate(read_json(path))
    stored = path.with_name(PREDICTIONS)
    if sha256(stored) != facts.predictions.sha256:
        raise InputError(
            f"{stored}: its sha256 is not the one in {METRICS}; delete {path.parent} and run the same command again"
        )
    return facts


def differences(path: Path) -> Iterator[str]:
    """Yield each number of a ``metrics.json`` that differs from the scores of its examples, if these are stored."""
    facts, arrays = read(path), _stored(path.with_name(PREDICTIONS))
    for metric, value in facts.metrics.items():
        if (scores := arrays.get(f"scores/{metric}")) is None:
            continue
        percent, size = 100.0 * scores.astype(np.float64), len(scores)
        checks = [("n_examples", facts.n_examples[metric], size, 0.0), ("metrics", value, percent.mean(), EXACT)]
        if metric in facts.stderr and size > 1:  # some tasks divide by N, some by N - 1
            checks.append(("stderr", facts.stderr[metric], percent.std(ddof=1) / math.sqrt(size), 1 / size))
        for key, given, expected, tolerance in checks:
            if not math.isclose(given, expected, rel_tol=tolerance, abs_tol=EXACT):
                yield f"{key}.{metric} = {given}, but {PREDICTIONS} gives {expected}"


def _stored(path: Path) -> Arrays:
    return load_file(path) if path.exists() else {}


def directory(run: Run, root: Path) -> Path:
    """Return the directory of a run's evaluation; ``root`` is the results directory of all scales."""
    return root / Path(evaluated_dir(run)).relative_to("results")
