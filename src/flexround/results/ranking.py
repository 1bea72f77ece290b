"""Rank the roundings: count the cells of a scale in which each method leads, shares the lead, or loses.

A *cell* is one metric of a network on a task. It fixes the setting (B or Q), number of bits, kind of grid, precision of
first and last layer, number of calibration samples and preprocessing. Its *methods* are roundings with their options:
all compared rows in the scale's tables, own rows included. A run that several tables show counts once. If a table
prints several metrics in one place, such as top-1/top-5, the first metric counts. Where a method also ran with as many
iterations as FlexRound (recipes ``*-equal``), a second ranking of these cells takes these runs instead.

All pairs of methods in a cell are compared by the tables' test (``paired.difference``). Benjamini and Hochberg's method
adjusts the p values for all pairs of the scale. One method is better than another if the adjusted p value is below 0.05
and the lead exceeds its noise. A method *leads* if it is better than every other method of the cell, *loses* if another
method is better, and *shares* the lead otherwise. All methods of a cell are *left out* if any seed is missing, or if
a pair has neither example scores nor bootstrap resamples.
"""

import itertools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import pandas as pd

from flexround.results import frames
from flexround.results.cells import Cell
from flexround.results.claims.specs import AT_EQUAL, budget_key
from flexround.results.paired import Lead, adjusted, between
from flexround.results.render.overview import family_of

ALL, EQUAL, FAMILY, SETTING = "all", "equal iterations", "family", "setting"
LEADS, SHARES, LOSES, LEFT_OUT = OUTCOMES = ["leads", "shares", "loses", "left_out"]
Entrant = tuple[str, str, str]  # method, setting with bits, and the cell's identity without the metric
Contest = dict[str, Cell]  # the methods of a cell


class Line(NamedTuple):
    """A line of ``ranking.csv``: a method in all cells of a scale, of a family, or of a setting."""

    by: str  # all, equal iterations, family or setting
    group: str  # all, the family, or the setting with its bits, such as "Q W4A8"
    method: str
    unbeaten: str  # percent of the method's cells that it doesn't lose; a group is sorted by it
    cells: int
    leads: int
    shares: int
    loses: int
    left_out: int
    scale: str


def contests(cells: Sequence[Cell], entrants: Mapping[str, Entrant]) -> list[Contest]:
    """Return the contests among the cells of tables, in their order; ``entrants`` are keyed by ``budget_key``."""
    found: dict[tuple[str, str], Contest] = defaultdict(dict)
    first = {cell.key._replace(metric=""): cell for cell in reversed(cells)}
    for cell in (cell for cell in cells if cell.compare and cell is first[cell.key._replace(metric="")]):
        if entrant := entrants.get(budget_key(cell.run)):
            found[entrant[2], cell.metric][entrant[0]] = cell
    return [contest for contest in found.values() if len(contest) > 1]


def at_equal_iterations(found: Sequence[Contest], cells: Sequence[Cell]) -> list[Contest]:
    """Return the contests that have runs at equal iterations, with these instead of their methods' own."""
    equal = {(budget_key(cell.run), cell.metric): cell for cell in cells if cell.run.recipe.endswith(AT_EQUAL)}
    swapped = [
        {method: equal.get((budget_key(cell.run) + AT_EQUAL, cell.metric), cell) for method, cell in contest.items()}
        for contest in found
    ]
    return [contest for contest, own in zip(swapped, found, strict=True) if contest != own]


def judge(found: Sequence[Contest]) -> list[dict[str, str]]:
    """Return the outcome of each method of each contest.

    Raises:
        InputError: methods were evaluated on different numbers of examples.
    """
    compared = [_leads(contest) for contest in found]
    p_values = iter(adjusted([lead.sure.p_value for leads in compared for lead in leads]))  # type: ignore[misc]
    decided = [[(lead, lead.decided(next(p_values))) for lead in leads] for leads in compared]
    return [
        {method: _outcome(cell, pairs) for method, cell in contest.items()}
        for contest, pairs in zip(found, decided, strict=True)
    ]


def rank(cells: Sequence[Cell], entrants: Mapping[str, Entrant], scale: str) -> pd.DataFrame:
    """Return the ranking of a scale: in all cells, at equal iterations, by family, and by setting and bits.

    Raises:
        InputError: see :func:`judge`.
    """
    lines = []
    for contest, outcomes in zip(found := contests(cells, entrants), judge(found), strict=True):
        run = next(iter(contest.values())).run
        family, setting = family_of([run.task, run.checkpoint]), entrants[budget_key(run)][1]
        groups = ((ALL, ALL), (FAMILY, family), (SETTING, setting))
        lines += [(*group, *outcome) for group, outcome in itertools.product(groups, outcomes.items())]
    for outcomes in judge(at_equal_iterations(found, cells)):
        lines += [(EQUAL, EQUAL, *outcome) for outcome in outcomes.items()]
    of = pd.DataFrame(lines, columns=["by", "group", "method", "outcome"]).value_counts().unstack(fill_value=0)
    of = of.reindex(columns=OUTCOMES, fill_value=0).reset_index().assign(scale=scale)
    of["cells"] = of[LEADS] + of[SHARES] + of[LOSES]
    of["unbeaten"] = (100 * (1 - of[LOSES] / of["cells"])).round(1)
    order = {"by": True, "group": True, "unbeaten": False, LEADS: False, "method": True}
    of = of.sort_values(list(order), ascending=list(order.values()))
    of["unbeaten"] = of["unbeaten"].map("{:.1f}".format).where(of["cells"] > 0, "")
    return frames.made(of.to_dict("records"), Line._fields)


def _leads(contest: Contest) -> list[Lead]:
    """Return the lead of each pair of methods; none if a seed is missing or a pair can't be compared."""
    if not all(cell.complete for cell in contest.values()):
        return []
    leads = [between(*pair) for pair in itertools.combinations(contest.values(), 2)]
    return leads if all(lead.sure.p_value is not None for lead in leads) else []


def _outcome(cell: Cell, pairs: Sequence[tuple[Lead, int]]) -> str:
    """Return a cell's outcome in its contest, given all pairs, each with its better side."""
    own = [sign if lead.cell is cell else -sign for lead, sign in pairs if cell is lead.cell or cell is lead.rival]
    if not own:
        return LEFT_OUT
    return LOSES if min(own) < 0 else LEADS if min(own) > 0 else SHARES
