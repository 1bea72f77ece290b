"""Paired statistics of two cells: the trials of each on the same examples, seed by seed."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats

from flexround.errors import InputError
from flexround.results.evaluated import Trial

Z = 1.96  # two-sided 95 %
FEWEST = 12  # examples of a bootstrap: of fewer, its interval misses the truth in more than 6 % for 5 %
LEVEL = 0.05


class Difference(NamedTuple):
    """The difference of two cells, and how sure it is."""

    value: float  # the mean over seeds of one minus other
    stderr: float  # in the unit of the metric; infinite if unknown
    noise: float  # how large the difference may be by chance: the half width of its 95 % interval
    p_value: float | None  # of "both are equally good"; None where nothing can be paired


def difference(ones: Sequence[Trial], others: Sequence[Trial]) -> Difference:
    """Compare the trials of two cells, one for each seed; a cell of one seed meets each seed of the other.

    One pair: see ``p_value``. Several: the mean of their differences, whose variance is that over the test set, of the
    mean over seeds of each example or bootstrap resample, plus that over seeds, which draw the calibration samples.
    Its test is Student's, with the degrees of freedom of Welch and Satterthwaite.

    Raises:
        InputError: trials of different numbers of examples.
    """
    count = max(len(ones), len(others))
    pairs = [(ones[index % len(ones)], others[index % len(others)]) for index in range(count)]
    of_examples, paired = _over_examples(pairs)
    if count == 1:
        return Difference(pairs[0][0].value - pairs[0][1].value, of_examples, Z * of_examples, p_value(*pairs[0]))
    leads = np.array([one.value - other.value for one, other in pairs])
    mean = float(leads.mean())
    of_seeds = float(leads.std(ddof=1)) / math.sqrt(count)
    error = math.hypot(of_examples, of_seeds)
    if not 0 < error < math.inf:
        return Difference(mean, error, error, float(mean == 0) if paired and error == 0 else None)
    freedom = error**4 / (of_examples**4 / (pairs[0][0].n_examples - 1 or 1) + of_seeds**4 / (count - 1))
    p = 2 * float(stats.t.sf(abs(mean) / error, freedom)) if paired else None
    return Difference(mean, error, float(stats.t.isf(LEVEL / 2, freedom)) * error, p)


def _over_examples(pairs: Sequence[tuple[Trial, Trial]]) -> tuple[float, bool]:
    """Return the standard error of the mean difference of some pairs on their test set, and whether it is paired.

    Paired over the examples where all trials have scores: most examples are right or wrong in both trials and tell
    nothing. For metrics that are no mean over examples, over the bootstrap resamples that all trials share. Unpaired
    otherwise; infinite where the metric has no standard error at all, or the test set too few examples for one.
    """
    for one, other in pairs:
        if one.n_examples != other.n_examples:
            raise InputError(
                f"{one.directory}: {one.n_examples} examples, but {other.directory} has {other.n_examples}; "
                "evaluate both on the same test set"
            )
    for kind in ("scores", "replicates"):
        arrays = [(getattr(one, kind)(), getattr(other, kind)()) for one, other in pairs]
        if all(values is not None for pair in arrays for values in pair):
            mean = np.mean([one - other for one, other in arrays], axis=0)
            root, fewest = (math.sqrt(len(mean)), 2) if kind == "scores" else (1.0, FEWEST)
            return float(mean.std(ddof=1)) / root if pairs[0][0].n_examples >= fewest else math.inf, True
    errors = [
        math.inf if one.stderr is None or other.stderr is None else math.hypot(one.stderr, other.stderr)
        for one, other in pairs
    ]
    return max(errors), False  # seeds share the test set: more of them don't help


def p_value(one: Trial, other: Trial) -> float | None:
    """Return the two-sided p-value of "both trials are equally good"; None where nothing can be paired.

    McNemar's exact test where every example is right or wrong, the normal test of the paired differences for other
    scores of examples, and the share of sign changes over the shared bootstrap resamples for other metrics.
    """
    scores, others = one.scores(), other.scores()
    if scores is not None and others is not None:
        if np.isin([scores, others], (0.0, 100.0)).all():
            won, lost = int(np.sum(scores > others)), int(np.sum(scores < others))
            return float(stats.binomtest(won, won + lost).pvalue) if won + lost else 1.0
        mean, deviation = float((scores - others).mean()), float((scores - others).std())
        if deviation == 0:
            return float(mean == 0)
        return float(2 * stats.norm.sf(abs(mean) / deviation * math.sqrt(len(scores))))
    replicates, rivals = one.replicates(), other.replicates()
    if replicates is None or rivals is None:
        return None
    differences = replicates - rivals
    rarer = min(np.sum(differences <= 0), np.sum(differences >= 0))
    return min(1.0, 2 * float(rarer + 1) / (len(differences) + 1))  # the sample itself counts as one resample
