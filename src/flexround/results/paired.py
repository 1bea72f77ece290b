"""Paired statistics: the difference of two cells with its uncertainty, the better cell, and the winner of a contest.

Tables, claims, ranking and ``flexround compare`` all test by :func:`difference` and decide by :func:`decided`.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats

from flexround import metrics
from flexround.errors import InputError
from flexround.results.cells import Cell
from flexround.results.evaluated import Trial
from flexround.results.paper_numbers import DECIMALS, Key

Z = 1.96  # two-sided 95 % of the normal distribution
FEWEST = 12  # examples for a bootstrap: fewer don't show the skewness of their distribution
LEVEL = 0.05
EXACT = 6  # decimals of a margin; the rest is floating-point error


class Difference(NamedTuple):
    """The difference of two cells, with its uncertainty."""

    value: float  # one minus other, mean over seeds
    stderr: float  # in the unit of the metric; infinite if unknown
    noise: float  # half width of the 95 % interval
    p_value: float | None  # for "both are equally good"; None if nothing can be paired
    apart: float  # larger absolute end of a 95 % interval, widened if few examples differ


class Lead(NamedTuple):
    """The lead of a cell over a rival, such as the best other cell of its contest."""

    cell: Cell
    rival: Cell
    value: float  # the cell minus the rival, mean over seeds
    sure: Difference  # with its uncertainty over examples and seeds
    best: bool = False  # whether the cell beats every other cell of its contest by more than the noise

    def decided(self, p_value: float | None) -> int:
        """Return 1 if the cell is better than its rival, -1 if it is worse, 0 if chance may explain the difference."""
        return decided(metrics.of(self.cell.metric).sign * self.value, self.sure.noise, p_value)

    @property
    def wins(self) -> bool:
        """Whether the cell is better by more than the noise, and the uncorrected p value agrees."""
        return self.decided(self.sure.p_value) > 0


def decided(margin: float, noise: float, p_value: float | None) -> int:
    """Return the sign of a margin, or 0 if it is inside the noise or ``p_value`` is known and at least 0.05."""
    if round(abs(margin) - noise, EXACT) <= 0 or (p_value is not None and p_value >= LEVEL):
        return 0
    return 1 if margin > 0 else -1


def adjusted(p_values: Sequence[float]) -> list[float]:
    """Return p values adjusted for their number by Benjamini and Hochberg's method."""
    return [float(p) for p in stats.false_discovery_control(p_values)]


def between(cell: Cell, rival: Cell) -> Lead:
    """Return the lead of a cell over a rival; both must have trials.

    Raises:
        InputError: the cells were evaluated on different numbers of examples.
    """
    sure = difference(cell.trials, rival.trials)
    return Lead(cell, rival, sure.value, sure)


def leads(cells: Iterable[Cell]) -> dict[Key, Lead]:
    """Return the lead of each cell whose contest is complete; an incomplete contest has no known best rival.

    Contests follow the paper: Tables 1 and 10 mark one winner across their rules. The best cell must beat every other
    cell: the runner-up is not always the hardest to separate statistically.

    Raises:
        InputError: rivals were evaluated on different numbers of examples.
    """
    contests: dict[tuple[str, ...], list[Cell]] = defaultdict(list)
    for cell in cells:
        if cell.compare:
            network = (cell.run.task, cell.run.checkpoint, cell.metric)  # a row may name its own network
            contests[cell.key.section, cell.key.bits, cell.key.column, cell.key.metric, *network].append(cell)
    found = {}
    for contest in contests.values():
        if len(contest) > 1 and all(cell.complete for cell in contest):
            ranked = sorted(contest, key=lambda cell: -metrics.of(cell.metric).sign * cell.median)
            for cell in contest:
                found[cell.key] = _printed(cell, next(other for other in ranked if other is not cell))
            first = found[ranked[0].key]
            if first.wins and all(_printed(first.cell, other).wins for other in ranked[2:]):
                found[ranked[0].key] = first._replace(best=True)
    return found


def _printed(cell: Cell, rival: Cell) -> Lead:
    """Return the lead as a table shows it: with one seed, equal printed values are a tie."""
    lead = between(cell, rival)
    if max(len(cell.trials), len(rival.trials)) > 1:
        return lead
    return lead._replace(value=round(cell.median, DECIMALS) - round(rival.median, DECIMALS))


class _Sampled(NamedTuple):
    """The sampling error of the mean difference of some pairs, due to the choice of the test set."""

    error: float  # standard error
    sides: tuple[float, float]  # standard errors below and above the mean: unequal for a skewed bootstrap
    example: float  # effect of one differing example on the difference
    paired: bool


def difference(ones: Sequence[Trial], others: Sequence[Trial]) -> Difference:
    """Compare the trials of two cells seed by seed; a cell with one seed is compared with each seed of the other.

    The variance of the mean difference is the sum of two variances: over the test set, for the mean over seeds by
    example or bootstrap resample, and over seeds, which draw the calibration samples. The test is Student's with Welch
    and Satterthwaite's degrees of freedom; one pair of seeds with right or wrong answers gets McNemar's exact test.

    Raises:
        InputError: the trials have different numbers of examples.
    """
    count = max(len(ones), len(others))
    pairs = [(ones[index % len(ones)], others[index % len(others)]) for index in range(count)]
    sampled, examples = _over_examples(pairs), max(pairs[0][0].n_examples - 1, 1)
    leads = np.array([one.value - other.value for one, other in pairs])
    mean, seeds = float(leads.mean()), max(count - 1, 1)
    of_seeds = float(leads.std(ddof=1)) / math.sqrt(count) if count > 1 else 0.0
    error, freedom = math.hypot(sampled.error, of_seeds), float(examples)
    if 0 < error < math.inf:
        freedom = error**4 / (sampled.error**4 / examples + of_seeds**4 / seeds)
    t = float(stats.t.isf(LEVEL / 2, freedom))
    rare, (below, above) = t * t * sampled.example, (t * math.hypot(side, of_seeds) for side in sampled.sides)
    p = (_mcnemar(*pairs[0]) if count == 1 else None) if sampled.paired else None
    if sampled.paired and p is None:
        p = 2 * float(stats.t.sf(abs(mean) / error, freedom)) if error else float(mean == 0)
    apart = max(mean + _reach(mean, above, rare), _reach(-mean, below, rare) - mean)
    return Difference(mean, error, t * error, p, apart)


def _reach(mean: float, half: float, rare: float) -> float:
    """Return the upper end of an interval around ``mean``, with half width ``half`` before widening for few examples.

    As in Tango's interval (1998), the variance is taken at the interval's end: for the likeliest counts of won and
    lost examples with that difference. In the limit of rare differences the end is the root of a cubic.
    """
    if not math.isfinite(half + rare):
        return math.inf
    return float(np.roots([1, 0, -(half**2 + rare**2), -(rare**2) * mean]).real.max())


def _over_examples(pairs: Sequence[tuple[Trial, Trial]]) -> _Sampled:
    """Return the sampling error of the mean difference of some pairs over their test set.

    If all trials have scores, the error is paired over examples: most examples have equal results in both trials.
    Metrics that are no mean over examples are paired over shared bootstrap resamples. Otherwise the error is unpaired,
    or infinite if the metric has no standard error or the test set has too few examples.
    """
    for one, other in pairs:
        if one.n_examples != other.n_examples:
            raise InputError(
                f"{one.directory}: {one.n_examples} examples, but {other.directory} has {other.n_examples}; "
                "evaluate both on the same test set"
            )
    size = pairs[0][0].n_examples
    for kind in ("scores", "replicates"):
        arrays = [(getattr(one, kind)(), getattr(other, kind)()) for one, other in pairs]
        if all(values is not None for pair in arrays for values in pair):
            mean = np.mean([one - other for one, other in arrays], axis=0)
            if kind == "replicates":
                return _bootstrapped(mean, float(np.mean([one.value - other.value for one, other in pairs])), size)
            error = float(mean.std(ddof=1)) / math.sqrt(size) if size > 1 else math.inf
            return _Sampled(error, (error, error), 100 / size, True)
    errors = [
        math.inf if one.stderr is None or other.stderr is None else math.hypot(one.stderr, other.stderr)
        for one, other in pairs
    ]
    error = max(errors)  # seeds share the test set: more seeds don't help
    return _Sampled(error, (error, error), 0.0, False)


def _bootstrapped(drawn: np.ndarray, value: float, size: int) -> _Sampled:
    """Return the sampling error of a difference from its values on bootstrap resamples (R,) of ``size`` examples.

    The sides are from the BCa interval (Efron, 1987), whose acceleration is a sixth of the skewness. A resample with
    none of the k differing examples has a difference of exactly 0; its probability is exp(-k).
    """
    if size < FEWEST:
        return _Sampled(math.inf, (math.inf, math.inf), 0.0, True)
    scale = math.sqrt(size / (size - 1))  # a resample's variance has divisor N, not N - 1
    error = float(drawn.std(ddof=1)) * scale
    if error == 0:
        return _Sampled(error, (error, error), math.inf, True)  # the effect of one example is unknown
    share = (np.sum(drawn < value) + np.sum(drawn == value) / 2) / len(drawn)
    bias = stats.norm.ppf(np.clip(share, 1 / len(drawn), 1 - 1 / len(drawn)))
    shifted = bias + np.array([-Z, Z])
    ends = np.quantile(drawn, stats.norm.cdf(bias + shifted / (1 - stats.skew(drawn) / 6 * shifted)))
    below, above = (max(0.0, float(side)) * scale / Z for side in (value - ends[0], ends[1] - value))
    none = float(np.mean(drawn == 0))
    return _Sampled(error, (below, above), error / math.sqrt(-math.log(none)) if none else 0.0, True)


def _mcnemar(one: Trial, other: Trial) -> float | None:
    """Return the p value of McNemar's exact test; None if examples are not right or wrong."""
    scores, others = one.scores(), other.scores()
    if scores is None or others is None or not np.isin([scores, others], (0.0, 100.0)).all():
        return None
    won, lost = int(np.sum(scores > others)), int(np.sum(scores < others))
    return float(stats.binomtest(won, won + lost).pvalue) if won + lost else 1.0
