"""How far a cell may move from its reference, from the measured spread of runs.

Two spreads are measured: of runs that differ in their seed alone, and of runs that differ in nothing but the order of
floating-point sums, networks trained anew included, as on another machine. Both are taken relative to a cell's noise,
the standard error on its test set, so that cells with few runs, or none, can borrow the spread of cells alike.

    sd = noise x the larger of the two pooled relative spreads, or the spread of the cell's own seeds if that is larger
    tolerance = max(4 x sqrt(2) x sd, one test example or 0.01)

sqrt(2) because both the reference and what is compared with it vary; 4 because some hundred cells are compared at once
and sd itself is known from few runs. Spreads are pooled, not taken cell by cell: that of three seeds is often near zero
by chance. Full precision has one seed, so only the second spread is its own.

Where no spread is known, sd is the cell's noise, because a network that is trained anew may move by as much. Weights
that are used as they come can't: their sd is the standard error of the paired difference to the cell's rival, which
shares the test set and the weights, if it is smaller; in full precision it is one test example, or 0.01.
"""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from flexround import metrics
from flexround.results.cells import Cell
from flexround.results.contests import EXACT
from flexround.results.evaluated import Trial
from flexround.results.paper_numbers import Key
from flexround.settings.schema import Recipe

SDS = 4.0
DIGIT = 0.01  # the last one of a table
ENOUGH = 4  # degrees of freedom that a spread is taken from
OWN = 2  # degrees of freedom from which a cell's own spread counts
Kind = tuple[str, ...]  # family, setting, bits of the weights, metric


class Spread(NamedTuple):
    """Squared deviations of a cell's runs relative to its noise, their sum and degrees of freedom."""

    kind: Kind
    squares: float
    dof: int


class Tolerance(NamedTuple):
    """A line of the tolerances of a reference: standard deviation and tolerance of a cell, and where they are from."""

    key: Key
    n_seeds: int | None
    sd: float  # in the unit of the cell
    tolerance: float
    source: str


class Pool:
    """Spreads of many cells, pooled over those of equal kind, or of equal first parts of it where those are few."""

    def __init__(self, spreads: Iterable[Spread]) -> None:
        self._sums: dict[Kind, tuple[float, int]] = {}
        for spread in spreads:
            for length in range(len(spread.kind) + 1):
                squares, dof = self._sums.get(spread.kind[:length], (0.0, 0))
                self._sums[spread.kind[:length]] = squares + spread.squares, dof + spread.dof

    def relative(self, kind: Kind, least: int) -> tuple[float, str] | None:
        """Return the relative standard deviation of a kind and what it is pooled over; None if too little is known.

        ``least`` parts of the kind at least must be equal.
        """
        for length in range(len(kind), least - 1, -1):
            squares, dof = self._sums.get(kind[:length], (0.0, 0))
            if dof >= ENOUGH:
                return math.sqrt(squares / dof), f"{' '.join(kind[:length]) or 'all'} ({dof} df)"
        return None


def kind(cell: Cell, family: str, recipes: Mapping[str, Recipe]) -> Kind:
    """Return what a cell's spread depends on, the most important first."""
    recipe = recipes[cell.run.recipe]
    recipe = recipes[recipe.select[0]] if recipe.select else recipe
    return family, recipe.setting or "full precision", f"W{recipe.w_bits or 32}", cell.trials[0].metric


def noise(trial: Trial) -> float:
    """Return the standard error of a trial on its test set, and at least the smallest step it can move by."""
    return max(trial.stderr or 0.0, step(trial))


def step(trial: Trial) -> float:
    """Return one test example in percent, and at least the last digit of a table."""
    return max(100.0 / trial.n_examples, DIGIT) if metrics.of(trial.metric).higher_is_better else DIGIT


def spread(trials: Sequence[Trial], kind: Kind) -> Spread:
    """Return the spread of the trials of a cell: of its seeds, or of one seed with sums in another order."""
    values, unit = [trial.value for trial in trials], noise(trials[0])
    mean = statistics.fmean(values)
    return Spread(kind, sum(((value - mean) / unit) ** 2 for value in values), len(values) - 1)


def allowed(
    cell: Cell, kind: Kind, recipe: Recipe, seeds: Pool, rounding: Pool, trained: bool, pair: float | None
) -> Tolerance:
    """Return the tolerance of a cell with trials, from the spreads over seeds, if it is quantized, and rounding.

    Without either it depends on ``trained``, whether the network is trained here, and on ``pair``, the standard error
    of the difference to the cell's rival, None where it has none.
    """
    unit, found = noise(cell.trials[0]), []
    # Seeds of another family tell nothing of this one; sums in another order do.
    for name, pool, least in (("seeds", seeds if recipe.quantized else None, 1), ("rounding", rounding, 0)):
        if pool and (relative := pool.relative(kind, least)):
            found.append((unit * relative[0], f"{name}: {relative[1]}"))
    if len(cell.trials) - 1 >= OWN:
        found.append((statistics.stdev(trial.value for trial in cell.trials), f"own {len(cell.trials)} seeds"))
    sd, source = max(found, key=lambda one: round(one[0], EXACT)) if found else alone(cell.trials[0], trained, pair)
    limit = max(SDS * math.sqrt(2) * sd, step(cell.trials[0]))
    return Tolerance(cell.key, len(cell.trials), sd, rounded_up(limit), source)


def alone(trial: Trial, trained: bool, pair: float | None) -> tuple[float, str]:
    """Return a standard deviation without any spread, and what it is, as :func:`allowed` asks for it."""
    if trained:
        return noise(trial), "test set"
    if pair is None:
        return step(trial), "smallest step"
    return min((noise(trial), "test set"), (max(pair, step(trial)), "pair with its rival"))


def rounded_up(limit: float) -> float:
    """Return a tolerance in the last digit of a table, not below ``limit``."""
    return math.ceil(round(limit / DIGIT, EXACT)) * DIGIT
