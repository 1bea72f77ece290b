"""Is the budget of a reconstruction enough? What is evaluated (hard) must be near what was learned (soft)."""

import math
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from flexround.io.artifacts import read_json
from flexround.metrics import LARGEST_RATIO
from flexround.settings import layout
from flexround.settings.layout import Run


class Unit(NamedTuple):
    """One learned block of a run: its reconstruction error when its weights are rounded, over that before."""

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
    """Return how many times the hard error is the soft one."""
    if soft == 0:
        return 1.0 if hard == 0 else math.inf
    return hard / soft


def unconverged(found: Iterable[Unit]) -> list[Unit]:
    """Return the units whose iterations were not enough."""
    return [unit for unit in found if not unit.ratio <= LARGEST_RATIO]
