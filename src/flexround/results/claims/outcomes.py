"""The outcome of each comparison of ``claims.csv``, after correction for the number of comparisons of a scale."""

import math
from collections.abc import Iterable, Mapping

from scipy import stats

from flexround import metrics
from flexround.results.claims.specs import Claims
from flexround.results.paired import LEVEL
from flexround.results.table_csv import P_DECIMALS, number

BETTER, WORSE, EQUAL, UNDECIDED = "better", "worse", "equal", "undecided"


def add(lines: Iterable[Mapping[str, str]], bounds: Claims) -> list[dict[str, str]]:
    """Return the lines of a ``claims.csv``, text by column, with ``p_adjusted`` and ``outcome`` if they have a p-value.

    Benjamini and Hochberg's method adjusts the p-values for all lines, which are those of one scale. Both columns
    follow from the other columns as printed, so a reader can compute them again from the file alone.
    """
    found = [dict(line) for line in lines]
    tested = [line for line in found if line.get("p_value")]
    adjusted = stats.false_discovery_control([float(line["p_value"]) for line in tested])
    for line, p in zip(tested, adjusted, strict=True):
        line |= {"p_adjusted": number(p, P_DECIMALS), "outcome": _outcome(line, p, bounds)}
    return found


def _outcome(line: Mapping[str, str], p: float, bounds: Claims) -> str:
    """Return how the first method stands: ahead if adjusted p and 95 % interval, margin ± noise, both say so.

    It is equal to the second one if the interval lies within the bound: two one-sided tests at 2.5 %. Else the end of
    the interval, rounded up, says how far apart the two may be.
    """
    margin, noise = float(line["margin"]), float(line["noise"] or math.inf)
    if p < LEVEL and abs(margin) > noise:
        return BETTER if margin > 0 else WORSE
    relative = metrics.of(line["metric"]).relative
    limit, unit = (bounds.equal_percent, "%") if relative else (bounds.equal_points, "points")
    apart = round(abs(margin) + noise, 6)  # printed decimals, whose sum is not one of float's
    if apart <= limit:
        return f"{EQUAL} within {limit:g} {unit}"
    return UNDECIDED if math.isinf(apart) else f"{UNDECIDED}, at most {math.ceil(10 * apart) / 10:g} {unit} apart"
