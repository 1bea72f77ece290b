"""Figure 7 as cells: accuracy against calibration size, compared in the same way as tables."""

import itertools
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field

from flexround.results import paper_numbers
from flexround.results.cells import Cell, trials_of
from flexround.results.evaluated import Trial
from flexround.results.paper_numbers import Key, Point
from flexround.settings.layout import Run
from flexround.settings.schema import Count, Strict
from flexround.settings.tables import SampleSize

if TYPE_CHECKING:
    from flexround.settings.plan import Plan  # stages must not depend on the planner


class Sizes(Strict):
    """Accuracy against calibration size: figure 7."""

    spec: SampleSize
    points: tuple[Point, ...] = Field(description="of the paper")
    sizes: tuple[Count, ...]
    seeds: Count


def of(plan: "Plan") -> Sizes:
    """Return the methods, sizes and seeds of figure 7 at a scale."""
    return Sizes(
        spec=plan.params.figures.sample_size,
        points=tuple(paper_numbers.load_figure7()) if plan.scale.shows.published else (),
        sizes=plan.scale.figures.sample_sizes,
        seeds=plan.size_seeds,
    )


def values(shown: Sizes, scale: str, root: Path) -> dict[tuple[str, int], list[float]]:
    """Return the values of all evaluated seeds of a scale, by method and calibration size.

    Raises:
        InputError: an evaluated run is unusable.
    """
    every = itertools.product(shown.spec.recipes, shown.sizes)
    return {(m, size): [trial.value for trial in _trials(shown, m, size, scale, root)[1]] for m, size in every}


def collect(shown: Sizes, scale: str, root: Path, made: bool = True) -> tuple[list[Cell], dict[Key, float]]:
    """Return a cell for each method and size in the scale or the paper, and the published numbers.

    All cells share one column, so that sizes can be compared. ``root`` holds ``SCALE/evaluated/``; it is read only
    if the figure is ``made``.

    Raises:
        InputError: an evaluated run is unusable.
    """
    spec, published = shown.spec, {(point.method, point.size): point.value for point in shown.points}
    every = sorted({*shown.sizes, *(point.size for point in shown.points)}, reverse=True)
    cells, numbers = [], {}
    for row, (method, size) in enumerate(itertools.product(spec.recipes, every), start=1):
        run, trials = _trials(shown, method, size, scale, root, made and size in shown.sizes)
        key = Key(spec.number, row, "", f"{method}, {size} samples", "", spec.checkpoint, spec.metric)
        cells.append(Cell(key, 1, True, run, spec.metric, shown.seeds, trials))
        if (method, size) in published:
            numbers[key] = published[method, size]
    return cells, numbers


def _trials(
    shown: Sizes, method: str, size: int, scale: str, root: Path, made: bool = True
) -> tuple[Run, tuple[Trial, ...]]:
    """Return the first run of a method at a calibration size, and its evaluated seeds."""
    spec = shown.spec
    run = Run(scale, spec.task, spec.checkpoint, spec.recipe(method, size), 0)
    return run, trials_of(run, [spec.metric], shown.seeds if made else 0, root)[spec.metric]
