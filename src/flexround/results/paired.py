"""Paired statistics of two trials of one metric on the same examples."""

import math

import numpy as np
from scipy import stats

from flexround.errors import InputError
from flexround.results.evaluated import Trial


def standard_error(one: Trial, other: Trial) -> float:
    """Return the standard error of the difference of two trials, in their unit.

    Paired over the examples where both have scores: most examples are right or wrong in both trials and tell
    nothing. For metrics that are no mean over examples, over the bootstrap resamples that all trials share. Unpaired
    otherwise; infinite where the metric has no standard error at all.

    Raises:
        InputError: the trials have different numbers of examples.
    """
    if one.n_examples != other.n_examples:
        raise InputError(
            f"{one.directory}: {one.n_examples} examples, but {other.directory} has {other.n_examples}; "
            "evaluate both on the same test set"
        )
    scores, others = one.scores(), other.scores()
    if scores is not None and others is not None and one.n_examples > 1:
        return float(np.std(scores - others, ddof=1)) / math.sqrt(one.n_examples)
    replicates, rivals = one.replicates(), other.replicates()
    if replicates is not None and rivals is not None:
        return float(np.std(replicates - rivals, ddof=1))
    if one.stderr is None or other.stderr is None:
        return math.inf
    return math.hypot(one.stderr, other.stderr)


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
