"""Contests between the rows of equal section and bits: who leads by how much, and who wins. A tie has no winner."""

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from flexround import metrics
from flexround.results.cells import Cell
from flexround.results.paired import LEVEL, Difference, difference
from flexround.results.paper_numbers import DECIMALS, Key

EXACT = 6  # decimals of a margin; the rest is floating-point error


class Lead(NamedTuple):
    """How a cell stands against the best of the other cells in its contest."""

    cell: Cell
    rival: Cell
    value: float  # the cell's minus the rival's, the mean over seeds
    sure: Difference  # how sure that is, over examples and seeds
    best: bool = False  # whether the cell is better than every other one of its contest by more than the noise

    @property
    def wins(self) -> bool:
        """Whether the cell is better by more than the noise, and p agrees."""
        return self.decided(self.sure.p_value) > 0

    def decided(self, p_value: float | None) -> int:
        """Return 1 if the cell is better than its rival, -1 if it is worse, 0 if chance may explain the difference.

        The lead must exceed the noise, and ``p_value``, if there is one, must be below 0.05.
        """
        margin = metrics.of(self.cell.metric).sign * self.value
        if round(abs(margin) - self.sure.noise, EXACT) <= 0 or (p_value is not None and p_value >= LEVEL):
            return 0
        return 1 if margin > 0 else -1


def leads(cells: Iterable[Cell]) -> dict[Key, Lead]:
    """Return the lead of each cell whose contest is complete: before that, its best rival isn't known.

    The contests are those of the paper: its Tables 1 and 10 mark one winner across their rules. The best cell must beat
    each other one: the second best is not always the one that it is least sure to beat.

    Raises:
        InputError: rivals evaluated on different numbers of examples.
    """
    contests: dict[tuple[str, ...], list[Cell]] = defaultdict(list)
    for cell in cells:
        if cell.compare:
            network = (cell.run.task, cell.run.checkpoint, cell.metric)  # a row may name its own
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


def between(cell: Cell, rival: Cell) -> Lead:
    """Return how a cell stands against another; both have trials.

    Raises:
        InputError: they were evaluated on different numbers of examples.
    """
    sure = difference(cell.trials, rival.trials)
    return Lead(cell, rival, sure.value, sure)


def _printed(cell: Cell, rival: Cell) -> Lead:
    """Return how a cell stands against another in a table: what looks like a tie there, of one seed, is one."""
    lead = between(cell, rival)
    if max(len(cell.trials), len(rival.trials)) > 1:
        return lead
    return lead._replace(value=round(cell.median, DECIMALS) - round(rival.median, DECIMALS))
