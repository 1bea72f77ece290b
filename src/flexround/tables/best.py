"""Which cells are the best of their section and bits by more than the noise. A tie has no winner."""

import math
from collections import defaultdict
from collections.abc import Iterable
from operator import itemgetter

import numpy as np

from flexround.errors import InputError
from flexround.tables.cells import Cell
from flexround.tables.evaluated import Trial
from flexround.tables.published import DECIMALS, Key

Z = 1.96  # two-sided 95 %
EXACT = 6  # decimals of a margin; the rest is floating-point error


def best(cells: Iterable[Cell]) -> set[Key]:
    """Return the keys of the cells that win among the rows of their section and bits by more than the noise.

    The contests of the paper: its Tables 1 and 10 mark one winner across their rules.

    Raises:
        InputError: rivals evaluated on different numbers of examples, or stale per-example scores.
    """
    contests: dict[tuple[str, str, str, str], list[Cell]] = defaultdict(list)
    for cell in cells:
        if cell.compare:
            contests[cell.key.section, cell.key.bits, cell.key.column, cell.key.metric].append(cell)
    winners = (_winner(rivals) for rivals in contests.values())
    return {winner.key for winner in winners if winner is not None}


def _winner(rivals: list[Cell]) -> Cell | None:
    """Return the winner of a contest; None while a rival's seeds are not all there, or inside the noise."""
    if len(rivals) < 2 or not all(cell.complete for cell in rivals):
        return None
    sign = 1 if rivals[0].trials[0].higher_is_better else -1
    ranked = sorted(((sign * cell.value, cell) for cell in rivals if cell.value is not None), key=itemgetter(0))
    (low, second), (high, first) = ranked[-2:]
    margin = round(high, DECIMALS) - round(low, DECIMALS)  # what looks like a tie is one
    return first if round(margin - noise(first, second), EXACT) > 0 else None


def noise(one: Cell, other: Cell) -> float:
    """Return the difference of two complete cells that chance alone explains, in the cells' unit.

    The larger of ``Z`` standard errors of the difference on this test set and either cell's spread over seeds.
    """
    trial, rival = one.median_trial, other.median_trial
    sampling = Z * standard_error(trial, rival) if trial and rival else math.inf
    return max(sampling, one.spread or 0.0, other.spread or 0.0)


def standard_error(one: Trial, other: Trial) -> float:
    """Return the standard error of the difference of two trials of the same metric.

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
