"""Figure 7 as cells: accuracy against calibration size, so that it can be compared as tables are."""

from collections.abc import Sequence
from pathlib import Path

from flexround.results.cells import Cell, trials_of
from flexround.results.paper_numbers import Key, Point
from flexround.settings.layout import Run
from flexround.settings.tables import SampleSize


def collect(
    spec: SampleSize, points: Sequence[Point], scale: str, sizes: Sequence[int], seeds: int, root: Path
) -> tuple[list[Cell], dict[Key, float]]:
    """Return a cell for each method and size of the scale or the paper, and the published numbers.

    All cells share one column, so that sizes can be compared with each other. A complete cell has ``seeds``, and
    ``root`` holds ``SCALE/evaluated/``.

    Raises:
        InputError: an evaluated run that can't be used.
    """
    published = {(point.method, point.size): point.value for point in points}
    every = sorted({*sizes, *(point.size for point in points)}, reverse=True)
    cells, numbers = [], {}
    for row, (method, size) in enumerate([(m, s) for m in spec.recipes for s in every], start=1):
        run = Run(scale, spec.task, spec.checkpoint, spec.recipe(method, size), 0)
        trials = trials_of(run, [spec.metric], seeds, root)[spec.metric]
        key = Key(spec.number, row, "", f"{method}, {size} samples", "", spec.checkpoint, spec.metric)
        cells.append(Cell(key, 1, True, run, spec.metric, seeds, trials))
        if (method, size) in published:
            numbers[key] = published[method, size]
    return cells, numbers
