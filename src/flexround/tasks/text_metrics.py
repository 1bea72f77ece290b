"""The metrics of text tasks, their standard errors, and bootstrap replicates for paired comparisons.

Predictions and labels are arrays of shape (N,), classes as integers and similarities as floats. All values except
perplexities are in percent.
"""

import functools
import logging
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import f1_score, matthews_corrcoef

from flexround.errors import NumericalError
from flexround.machine.seeding import derive

log = logging.getLogger(__name__)

REPLICATES = 1000
CHUNK = 2**18  # weights in memory at once; several float64 arrays have this size at the same time
ROUNDING = 1e-12  # a spread below this share of the values is the rounding error of a constant


class Scored(NamedTuple):
    """One metric of one evaluation.

    Attributes:
        value: the metric in percent, except a perplexity.
        stderr: its standard error over the examples, in the same unit.
        scores: (N,) values whose mean is ``value / 100``; None if the metric is no mean over examples.
        replicates: float64 (count,) in the same unit, see ``replicates``; None if the metric has scores.
        examples: number of examples.
    """

    value: float
    stderr: float
    scores: np.ndarray | None
    replicates: np.ndarray | None
    examples: int


class Formula(NamedTuple):
    """A metric that is no mean over examples.

    Attributes:
        value: maps predictions and labels (N,) to a share.
        weighted: maps the examples' weights, float64 (C, N), predictions and labels to shares (C,).
    """

    value: Callable[[np.ndarray, np.ndarray], float]
    weighted: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]


def scored(name: str, predictions: np.ndarray, labels: np.ndarray) -> Scored:
    """Evaluate the metric ``name``, ``acc`` or one of ``METRICS``, on predictions (N,) and labels (N,).

    Raises:
        NumericalError: a prediction is NaN or Inf.
    """
    if not np.isfinite(predictions).all():
        raise NumericalError(f"{name}: the prediction for example {np.argmin(np.isfinite(predictions))} is not finite")
    if name == "acc":
        return averaged((predictions == labels).astype(np.uint8))
    value = 100.0 * float(METRICS[name].value(predictions, labels))
    return resampled(value, len(labels), replicates(name, predictions, labels))


def resampled(value: float, examples: int, drawn: np.ndarray) -> Scored:
    """Return a metric with its values on the examples' bootstrap resamples: float64 (R,)."""
    return Scored(value, float(drawn.std(ddof=1)), None, drawn, examples)


def averaged(scores: np.ndarray) -> Scored:
    """Return a metric that is the mean of per-example scores (N,) in 0..1, such as accuracy or SQuAD's F1."""
    percent = 100.0 * scores.astype(np.float64)
    spread = float(percent.std(ddof=1)) if len(percent) > 1 else 0.0
    return Scored(float(percent.mean()), spread / len(percent) ** 0.5, scores, None, len(percent))


def perplexity(losses: np.ndarray) -> Scored:
    """Return the perplexity of blocks of equal length: exp of the mean of their mean token losses, as in run_clm.

    Args:
        losses: the blocks' mean token losses in nats, float64 (N,).

    Raises:
        NumericalError: the perplexity is not finite.
    """
    parts = [weights @ losses / len(losses) for weights in _resamples(len(losses), REPLICATES)]
    with np.errstate(over="ignore"):
        value, drawn = float(np.exp(losses.mean())), np.exp(np.concatenate(parts))
    if not np.isfinite([value, *drawn]).all():
        raise NumericalError(f"a mean loss of {losses.mean()} nats over {len(losses)} blocks: no finite perplexity")
    return resampled(value, len(losses), drawn)


def replicates(name: str, predictions: np.ndarray, labels: np.ndarray, count: int = REPLICATES) -> np.ndarray:
    """Evaluate a metric on ``count`` bootstrap resamples of the examples: float64 (count,), in percent.

    Resample r has the same examples for every metric and every run on N examples. So the differences between two
    runs' replicates form a paired bootstrap. The value is 0 on a resample where the metric is undefined.
    """
    weighted = METRICS[name].weighted
    parts = [weighted(weights, predictions, labels) for weights in _resamples(len(labels), count)]
    return 100.0 * np.concatenate(parts)


def _correlation(function: Callable[..., Any], predictions: np.ndarray, labels: np.ndarray) -> float:
    """Return SciPy's correlation of two arrays (N,); 0 with a warning if predictions or labels are constant."""
    constant = [what for what, x in (("predictions", predictions), ("labels", labels)) if np.ptp(x) == 0]
    if constant:
        log.warning("the %s are constant: their correlation is not defined, 0 is reported", " and ".join(constant))
    return 0.0 if constant else function(predictions, labels).statistic


def _resamples(size: int, count: int) -> Iterator[np.ndarray]:
    """Yield the count of each example in each resample, float64 (C, size), ``count`` resamples in total."""
    rng = np.random.default_rng(derive("bootstrap", size))
    rows = max(1, CHUNK // size)
    for start in range(0, count, rows):
        drawn = min(rows, count - start)
        cells = rng.integers(size, size=(drawn, size)) + size * np.arange(drawn)[:, None]
        yield np.bincount(cells.ravel(), minlength=drawn * size).reshape(drawn, size).astype(np.float64)


def _weighted_f1(weights: np.ndarray, predictions: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return each resample's F1 = 2 TP / (predicted + actual positives): (C,)."""
    predicted, actual = (predictions == 1).astype(np.float64), (labels == 1).astype(np.float64)
    positives = weights @ (predicted + actual)
    return _ratio(2.0 * (weights @ (predicted * actual)), positives, positives > 0)


def _weighted_pearson(weights: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return each resample's correlation: (C,), from x and y of shape (N,) or one row per resample.

    For two classes this is also Matthews' coefficient.
    """
    dx, dy = (v - (weights * v).sum(axis=1, keepdims=True) / weights.shape[1] for v in (x, y))
    spread_x, spread_y = (np.sqrt((weights * d * d).sum(axis=1)) for d in (dx, dy))
    noise_x, noise_y = (ROUNDING * np.sqrt((weights * v * v).sum(axis=1)) for v in (x, y))
    defined = (spread_x > noise_x) & (spread_y > noise_y)
    return _ratio((weights * dx * dy).sum(axis=1), spread_x * spread_y, defined)


def _weighted_spearman(weights: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return each resample's rank correlation: (C,)."""
    return _weighted_pearson(weights, _weighted_ranks(weights, x), _weighted_ranks(weights, y))


def _weighted_ranks(weights: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Return each example's rank within each resample, ties averaged: (C, N)."""
    order = np.argsort(x)
    _, first, group = np.unique(x[order], return_index=True, return_inverse=True)
    sizes = np.add.reduceat(weights[:, order], first, axis=1)
    ranks = np.cumsum(sizes, axis=1) - (sizes - 1) / 2
    return ranks[:, group[np.argsort(order)]]


def _ratio(numerator: np.ndarray, denominator: np.ndarray, defined: np.ndarray) -> np.ndarray:
    """Divide where ``defined``, 0 elsewhere."""
    return np.divide(numerator, denominator, out=np.zeros(len(numerator)), where=defined)


METRICS = {
    # 0 if class 1 is neither predicted nor a label, and if predictions or labels are constant
    "f1": Formula(lambda predictions, labels: f1_score(labels, predictions, zero_division=0), _weighted_f1),
    "matthews": Formula(lambda predictions, labels: matthews_corrcoef(labels, predictions), _weighted_pearson),
    "pearson": Formula(functools.partial(_correlation, pearsonr), _weighted_pearson),
    "spearman": Formula(functools.partial(_correlation, spearmanr), _weighted_spearman),
}
