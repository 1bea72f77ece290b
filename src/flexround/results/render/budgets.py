"""Metric and error of methods against the budget: iterations per block, and CPU seconds of all blocks."""

import itertools
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from flexround.io.artifacts import read_json
from flexround.results import frames, published_results
from flexround.results.evaluated import read_run
from flexround.results.render import markdown, words
from flexround.results.render.figure_style import METHOD_COLOURS, METHOD_MARKERS, new_figure, style
from flexround.settings import layout
from flexround.settings.layout import Run
from flexround.settings.plan import Plan
from flexround.settings.tables import Budgets


class Point(NamedTuple):
    """One run of the figure: a row of its CSV file."""

    panel: str
    method: str
    iterations: int
    metric: str
    value: float
    error: float  # mean over blocks of the hard error / round-to-nearest's
    seconds: float  # CPU seconds of all blocks


X = {"iterations": "iterations for a block", "seconds": "CPU seconds"}
Y = {"value": "", "error": "error / RTN's"}
SECONDS = [5 * 2**power for power in range(16)]


def collect(figure: Budgets, scale: str, root: Path) -> list[Point]:
    """Return the points of a figure, panel by panel, from evaluated runs and the records of their reconstructions.

    Raises:
        InputError: an evaluated run or a record is unusable.
    """
    points = []
    for panel in figure.panels:
        for (method, recipe), count in itertools.product(panel.recipes.items(), panel.iterations):
            run = Run(scale, panel.task, panel.checkpoint, figure.recipe(recipe, count), 0)
            trial = read_run(run, root, [panel.metric])[panel.metric]
            network = root / Path(layout.quantized_dir(run)).relative_to("results")
            blocks = read_json(network / "record.json")["blocks"]
            error = statistics.mean(block["error_hard"] / block["error_rtn"] for block in blocks)
            seconds = sum(block["cpu_seconds"] for block in blocks)
            points.append(Point(panel.title, method, count, panel.metric, trial.value, error, seconds))
    return points


def load(root: Path, plan: Plan) -> dict[int, list[Point]]:
    """Return the points of each figure of budgets, computed in ``root``/results or published, by its number."""
    numbers = [number for number in sorted(plan.figures) if isinstance(plan.params.figures[number], Budgets)]
    files = {number: published_results.find(root, plan.scale, f"figure{number}.csv")[0] for number in numbers}
    return {number: points for number, file in files.items() if (points := frames.load(file, Point))}


def table(points: Sequence[Point]) -> str:
    """Return the metric of each method at each budget as Markdown; the points are those of one panel."""
    values = {(point.method, point.iterations): f"{point.value:.2f}" for point in points}
    methods, iterations = (list(dict.fromkeys(column)) for column in zip(*values, strict=True))
    rows = [[method.removeprefix("B + "), *(values[method, count] for count in iterations)] for method in methods]
    return markdown.table(["iterations", *map(str, iterations)], rows) + "\n"


def draw(points: Sequence[Point], title: str, scale: str) -> Figure:
    """Draw a row for each panel: metric and error against iterations, then both against seconds."""
    panels = list(dict.fromkeys(point.panel for point in points))
    with style():
        figure = new_figure(9.6, 2.1 * len(panels) + 0.4, title, scale)
        grid = figure.subplots(len(panels), len(X) * len(Y), squeeze=False)
        for row, panel in zip(grid, panels, strict=True):
            of_panel = [point for point in points if point.panel == panel]
            for axes, (x, y) in zip(row, itertools.product(X, Y), strict=True):
                _lines(axes, of_panel, x, y)
            row[0].set_title(panel, loc="left")
        handles, labels = grid[0][0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    return figure


def _lines(axes: Axes, points: Sequence[Point], x: str, y: str) -> None:
    """Draw a line for each method on a logarithmic axis of budgets."""
    for index, method in enumerate(dict.fromkeys(point.method for point in points)):
        own = sorted((point for point in points if point.method == method), key=lambda point: point.iterations)
        look = {"color": METHOD_COLOURS[index], "marker": METHOD_MARKERS[index], "markersize": 3, "linewidth": 1.2}
        axes.plot([getattr(point, x) for point in own], [getattr(point, y) for point in own], label=method, **look)
    axes.set_xscale("log", base=2)
    ticks = sorted({point.iterations for point in points}) if x == "iterations" else SECONDS
    low, high = axes.get_xlim()
    axes.set_xticks([tick for tick in ticks if low <= tick <= high])
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set(xlabel=X[x], ylabel=Y[y] or words.of(points[0].metric))
    axes.grid(axis="y")
