"""The runs that ``make regress`` recomputes (``params/regress.yaml``), and the check of a run's budget.

A budget is enough if the evaluated (hard) error of a block is near the learned (soft) error. No torch here.
"""

import math
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from pydantic import Field

from flexround.io.artifacts import read_json
from flexround.metrics import LARGEST_RATIO
from flexround.settings import layout, validation
from flexround.settings.layout import PARAMS, Run
from flexround.settings.schema import Strict

SUBSET = PARAMS / "regress.yaml"


class Member(Strict):
    """Runs of one network."""

    task: str
    checkpoint: str
    recipes: tuple[str, ...] = Field(min_length=1)


class Subset(Strict):
    """``params/regress.yaml``."""

    networks: tuple[Member, ...]

    def runs(self, scale: str) -> list[Run]:
        """Return each run with its first seed."""
        return [Run(scale, one.task, one.checkpoint, recipe, 0) for one in self.networks for recipe in one.recipes]


def load() -> Subset:
    """Read the runs."""
    return validation.load(Subset, SUBSET)


class Unit(NamedTuple):
    """One learned block of a run: the ratio of its reconstruction errors after and before rounding the weights."""

    run: Run
    block: str
    ratio: float

    def __str__(self) -> str:
        return f"{self.run}, block {self.block}: hard error {self.ratio:.2f} x soft error"


def units(run: Run, root: Path) -> list[Unit]:
    """Return the learned blocks of a finished run, given the results directory ``root`` of all scales."""
    directory = root / Path(layout.quantized_dir(run)).relative_to("results")
    blocks = read_json(directory / "record.json")["blocks"]
    learned = [block for block in blocks if "error_soft" in block]
    return [Unit(run, block["block"], ratio(block["error_hard"], block["error_soft"])) for block in learned]


def ratio(hard: float, soft: float) -> float:
    """Return the ratio of the hard error to the soft error."""
    if soft == 0:
        return 1.0 if hard == 0 else math.inf
    return hard / soft


def unconverged(found: Iterable[Unit]) -> list[Unit]:
    """Return the units with too few iterations."""
    return [unit for unit in found if not unit.ratio <= LARGEST_RATIO]
