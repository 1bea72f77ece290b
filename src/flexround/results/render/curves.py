"""Lines of methods: accuracy against bits or against calibration size, a panel for each network."""

import statistics
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from flexround.results.render.figure_style import GREY, METHOD_COLOURS, METHOD_MARKERS, guide, new_figure, style

STAGGER = 0.05  # of the distance between bits, so that error bars of several methods don't overlap
WINDOW = 6.0  # points below full precision: worse values are listed, or they would flatten all others
FAR, LEAST = 3, 0.05  # for other units: multiples of the median distance, and of full precision
IN_A_ROW = 3
METHODS = len(METHOD_COLOURS)  # with distinct looks; further methods repeat them


class CurvePoint(NamedTuple):
    """A method's value at a place of the horizontal axis, with its bar's length; full precision has no place."""

    panel: str
    method: str
    at: str
    value: float
    bar: float = 0.0


class Axis(NamedTuple):
    """The labels shared by the axes of all panels."""

    x: str
    y: str = "accuracy (%)"
    sizes: bool = False  # a logarithmic axis of numbers; else bits, side by side
    window: float | None = WINDOW


def of_seeds(panel: str, method: str, at: str, values: Sequence[float]) -> CurvePoint:
    """Return the mean over seeds with a bar of one standard deviation; for one seed the bar has no length."""
    bar = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
    return CurvePoint(panel, method, at, float(np.mean(values)), bar)


def seeds(found: Sequence[Sequence[float]]) -> str:
    """Return the meaning of the error bars and the number of seeds, given the values of each point."""
    counts = sorted({len(values) for values in found})
    if counts == [1]:
        return "one seed"
    return f"mean and standard deviation, n = {' to '.join(map(str, dict.fromkeys((counts[0], counts[-1]))))} seeds"


def places(points: Iterable[CurvePoint]) -> list[str]:
    """Return the ordered places of the horizontal axis."""
    return sorted({point.at for point in points if point.at}, key=lambda at: [int(part) for part in at.split("/")])


def draw(points: Sequence[CurvePoint], axis: Axis, title: str, scale: str) -> Figure:
    """Draw a panel for each network, a line for each method."""
    panels = list(dict.fromkeys(point.panel for point in points))
    rows = -(-len(panels) // IN_A_ROW)
    columns = -(-len(panels) // rows)
    with style():
        figure = new_figure(max(4.6, 2.7 * columns + 1.4), 2.6 * rows + 0.4, title, scale)
        all_axes = figure.subplots(rows, columns, squeeze=False).ravel()
        for axes, panel in zip(all_axes, panels, strict=False):
            _panel(axes, panel, [point for point in points if point.panel == panel], axis)
        for axes in all_axes[len(panels) :]:
            axes.set_axis_off()
        handles: dict[str, Artist] = {}
        for axes in figure.axes:
            handles |= dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
        figure.legend(handles.values(), handles.keys(), loc="outside right center")
    return figure


def _panel(axes: Axes, panel: str, points: Sequence[CurvePoint], axis: Axis) -> None:
    whole = [point.value for point in points if not point.at]
    for value in whole:
        guide(axes, y=value)
    drawn, ticks = [point for point in points if point.at], places(points)
    methods = list(dict.fromkeys(point.method for point in drawn))
    for index, method in enumerate(methods):
        own = sorted((point for point in drawn if point.method == method), key=lambda point: ticks.index(point.at))
        shift = STAGGER * (index - (len(methods) - 1) / 2)
        x = [float(point.at) if axis.sizes else ticks.index(point.at) + shift for point in own]
        y = [point.value for point in own]
        look = {"color": METHOD_COLOURS[index % METHODS], "marker": METHOD_MARKERS[index % METHODS], "markersize": 4}
        axes.errorbar(x, y, yerr=[point.bar for point in own], label=method, linewidth=1.2, capsize=2.5, **look)
    if axis.sizes:
        axes.set_xscale("log", base=2)
        axes.set_xticks([int(tick) for tick in ticks], ticks, minor=False)
    else:
        axes.set_xticks(range(len(ticks)), ticks)
    axes.set(title=panel, xlabel=axis.x, ylabel=axis.y)
    axes.grid(axis="y")
    if whole:
        _leave_out(axes, drawn, whole[0], axis.window)


def _leave_out(axes: Axes, points: Sequence[CurvePoint], best: float, window: float | None) -> None:
    """End the axis at ``window`` from full precision if some points are beyond it, and list these points."""
    distances = [abs(point.value - best) for point in points]
    reach = window or max(FAR * statistics.median(distances), LEAST * best)
    beyond = [point for point in points if abs(point.value - best) > (reach if window else 2 * reach)]
    if not beyond:
        return
    inside = [best, *(point.value for point in points if abs(point.value - best) <= reach)]
    margin = reach / 6
    low = best - reach if any(point.value < best for point in beyond) else min(inside) - margin
    high = best + reach if any(point.value > best for point in beyond) else max(inside) + margin
    axes.set_ylim(low, high)
    text = "outside the axis:\n" + "\n".join(f"{each.method} {each.value:.1f} at {each.at}" for each in beyond)
    axes.text(0.02, 0.02, text, transform=axes.transAxes, fontsize=6, color=GREY)
