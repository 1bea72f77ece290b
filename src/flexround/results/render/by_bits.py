"""Accuracy against the bits of the weights: a line for each method, full precision above them."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from flexround.errors import InputError
from flexround.results.render.figure_style import GREY, guide, method_line, new_figure, style

STAGGER = 0.05  # bits between methods, so that their error bars can be told apart
WINDOW = 6.0  # points below full precision: what is worse is named, so that it does not flatten all others


class Point(NamedTuple):
    """Accuracies (percent) of a method at a number of bits, one for each seed; no bits are full precision."""

    network: str
    method: str
    bits: int | None
    values: Sequence[float]


def draw(points: Sequence[Point], number: int, scale: str) -> Figure:
    """Draw a panel for each network: mean over seeds, bars of one standard deviation.

    Raises:
        InputError: no points, or one without a value.
    """
    if not points or not all(len(point.values) for point in points):
        raise InputError(f"figure {number}: a row without an evaluated run; evaluate all runs of its table first")
    networks = list(dict.fromkeys(point.network for point in points))
    with style():
        title = f"Figure {number}. Accuracy against bits of the weights"
        figure = new_figure(3.4 * len(networks) + 1.2, 3.2, title, scale)
        for axes, network in zip(figure.subplots(1, len(networks), squeeze=False)[0], networks, strict=True):
            _panel(axes, network, [point for point in points if point.network == network])
        handles, names = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside right center")
    return figure


def _panel(axes: Axes, network: str, points: Sequence[Point]) -> None:
    """Draw one network."""
    for point in points:
        if point.bits is None:
            guide(axes, y=float(np.mean(point.values)))
    quantized = [point for point in points if point.bits is not None]
    methods = list(dict.fromkeys(point.method for point in quantized))
    for index, method in enumerate(methods):
        own = [point for point in quantized if point.method == method]
        shift = STAGGER * (index - (len(methods) - 1) / 2)
        means = [float(np.mean(point.values)) for point in own]
        spreads = [float(np.std(point.values, ddof=1)) if len(point.values) > 1 else 0.0 for point in own]
        method_line(axes, index, method, [(point.bits or 0) + shift for point in own], means, spreads)
    bits = sorted({point.bits for point in quantized if point.bits is not None})
    axes.set_xticks(bits, [str(each) for each in bits])
    counts = {len(point.values) for point in quantized}
    seeds = "one seed" if counts == {1} else f"mean and standard deviation over {max(counts)} seeds"
    _leave_out(axes, points)
    axes.set(title=f"{network} (dashed: full precision)\n{seeds}", xlabel="bits of the weights", ylabel="accuracy (%)")
    axes.grid(axis="y")


def _leave_out(axes: Axes, points: Sequence[Point]) -> None:
    """Begin the axis at ``WINDOW`` below full precision if there is something below it, and say what."""
    means = {(point.method, point.bits): float(np.mean(point.values)) for point in points}
    top = max(means.values())
    bottom = max((value for (_, bits), value in means.items() if bits is None), default=WINDOW) - WINDOW
    below = [f"{method} {value:.1f} at W{bits}" for (method, bits), value in means.items() if value < bottom]
    if below:
        axes.set_ylim(bottom, top + WINDOW / 6)
        axes.text(0.02, 0.02, "below the axis:\n" + "\n".join(below), transform=axes.transAxes, fontsize=6, color=GREY)
