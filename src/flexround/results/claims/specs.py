"""Pydantic models of ``params/claims.yaml``: the paper's statements about its numbers."""

import re
from collections.abc import Iterator, Sequence

from pydantic import Field, model_validator

from flexround.results.cells import Cell
from flexround.settings.layout import PARAMS, Run
from flexround.settings.schema import Positive, Strict

CLAIMS = PARAMS / "claims.yaml"
AT_EQUAL = "-equal"  # end of the recipes with as many iterations as FlexRound


class Claim(Strict):
    """One statement of the paper: in each cell with both rows of a pair, the first row is better, unless bounded."""

    where: str = Field(description="section or appendix of the paper, and how it is said there if not in words")
    text: str
    places: tuple[str, ...] = Field(description="`table N` or `figure N`")
    pairs: tuple[tuple[str, str], ...] = Field(description="[one, other]: recipes; {name}: a number or word of both")
    sections: tuple[str, ...] = Field((), description="only these; all if there are none")
    columns: tuple[str, ...] = Field((), description="only these; all if there are none")
    metrics: tuple[str, ...] = Field((), description="only these, named as in published.csv; all if there are none")
    within: dict[str, Positive] = Field({}, description="metric -> `one` is worse by less than this")
    similar: dict[str, Positive] = Field({}, description="metric -> `one` differs by less than this")

    @model_validator(mode="after")
    def _one_kind(self) -> "Claim":
        if sum(map(bool, (self.metrics, self.within, self.similar))) > 1:
            raise ValueError("give metrics, within or similar, and only one of them")
        return self

    def matches(self, cells: Sequence[Cell]) -> Iterator[tuple[Cell, Cell]]:
        """Yield the cells of a table or figure that the claim compares, pair by pair."""
        by_place = {(cell.run.recipe, *_place(cell)): cell for cell in cells}
        for one, other in self.pairs:
            pattern = re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>\\d+|[a-z]\\w*)", re.escape(one))
            for cell in filter(self._covers, cells):
                names = re.fullmatch(pattern, cell.run.recipe)
                rival = by_place.get((other.format(**names.groupdict()), *_place(cell))) if names else None
                if rival is not None:
                    yield cell, rival

    def room(self, margin: float, metric: str) -> float:
        """Return the distance of a margin from the claim's limit; a negative distance contradicts the claim."""
        if self.similar:
            return self.similar[metric] - abs(margin)
        return margin + self.within.get(metric, 0.0)

    def criterion(self, metric: str) -> str:
        """Return the claim's criterion for a metric, in words."""
        if self.similar:
            return f"differs by less than {self.similar[metric]:g}"
        return f"worse by less than {self.within[metric]:g}" if self.within else "better"

    def _covers(self, cell: Cell) -> bool:
        wanted = (self.sections, self.columns, self.metrics or tuple(self.within or self.similar))
        values = (cell.key.section, cell.key.column, cell.key.metric)
        return all(not names or value in names for names, value in zip(wanted, values, strict=True))


class Claims(Strict):
    """``params/claims.yaml``."""

    claims: dict[str, Claim]
    equal_points: Positive = Field(description="methods are equal if the interval of their margin is within +/- this")
    equal_percent: Positive = Field(description="the same of metrics compared by their ratio, in percent of the other")


def _place(cell: Cell) -> tuple[str, str, str]:
    """Return the section, column and metric of a cell, which both rows of a comparison share."""
    return cell.key.section, cell.key.column, cell.key.metric


def budget_key(run: Run) -> str:
    """Return task, checkpoint and recipe of a run as one key, which all its seeds share."""
    return f"{run.task}/{run.checkpoint}/{run.recipe}"
