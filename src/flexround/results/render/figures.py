"""The paper's figures 3 to 7, drawn from plain arrays."""

import dataclasses
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from flexround.errors import InputError
from flexround.results.paper_numbers import Point
from flexround.results.render.figure_style import BLUE, ORANGE, guide, method_line, new_figure, style

PAPER_SHARE = {"MobileNetV2": 12.8, "ResNet-18": 1.5}  # section 3.2, % of weights moved by more than one step


@dataclasses.dataclass(frozen=True)
class Shifts:
    """How far a rounding moved the integer codes of one layer from round-to-nearest; all arrays have one shape.

    Raises:
        InputError: the shapes differ, or there is no weight.
    """

    name: str  # of the model (figures 3 to 5), or "model, method" (figure 6)
    weight: np.ndarray  # pre-trained, float
    learned: np.ndarray  # integer codes after learning
    rtn: np.ndarray  # integer codes of round-to-nearest

    def __post_init__(self) -> None:
        if not self.weight.shape == self.learned.shape == self.rtn.shape or not self.weight.size:
            raise InputError(
                f"{self.name}: weights of shape {self.weight.shape}, learned codes {self.learned.shape}, RTN codes "
                f"{self.rtn.shape}; take all three from the same layer"
            )

    @property
    def steps(self) -> np.ndarray:
        """Learned minus RTN codes, int64, flat; the difference of unsigned codes must not wrap around."""
        return self.learned.ravel().astype(np.int64) - self.rtn.ravel().astype(np.int64)

    @property
    def share(self) -> float:
        """Percent of the weights rounded aggressively, see :func:`share`."""
        return share(self.steps)


class Accuracies(NamedTuple):
    """Top-1 accuracies (percent) of a method at one calibration size, one for each seed."""

    method: str
    size: int
    values: Sequence[float]


def share(steps: np.ndarray) -> float:
    """Return the percentage of integer changes beyond one step."""
    return 100.0 * float(np.mean(np.abs(steps) > 1))


def figure3(panels: Sequence[Shifts], large_weight: float, where: str, scale: str) -> Figure:
    """Weight updates of one layer, ``where``: histograms for small and large weights, grid shifts.

    Each model has a row. A weight is large above ``large_weight``, 1 in the paper.
    """
    with style():
        title = f"Figure 3. Weight updates of the {where}, FlexRound, weights at 4 bit"
        figure = new_figure(7.2, 2.5 * len(panels) + 0.3, title, scale)
        rows = figure.subfigures(len(panels), 1, squeeze=False)[:, 0]
        for row, panel in zip(rows, panels, strict=True):
            paper = f" (paper: {PAPER_SHARE[panel.name]:g} %)" if panel.name in PAPER_SHARE else ""
            moved = f"{panel.name}: {panel.share:.1f} % of the weights moved by more than one step{paper}"
            row.suptitle(moved, fontsize=8.5, fontweight="bold")
            small, large, scatter = row.subplots(1, 3)
            above = np.abs(panel.weight.ravel()) > large_weight
            _histogram(small, panel.steps[~above], f"|W| ≤ {large_weight:g}", f"no weight up to {large_weight:g}")
            _histogram(large, panel.steps[above], f"|W| > {large_weight:g}", f"no weight above {large_weight:g}")
            _scatter(scatter, panel)
            scatter.set_title("shift from the RTN grid\n(orange: beyond one step)")
            if above.any():
                guide(scatter, x_low=-large_weight, x_high=large_weight)
    return figure


def figure4(panel: Shifts, where: str, scale: str) -> Figure:
    """Grid shifts of one layer, ``where``, at 4 bit."""
    title = f"Figure 4. Grid shifts, {where}\nof {panel.name}, FlexRound, weights at 4 bit"
    return _single(panel, title, scale)


def figure5(panel: Shifts, where: str, scale: str) -> Figure:
    """Grid shifts of one layer of BERT, ``where``, fine-tuned on MRPC, at 8 bit; the paper's reach about 60."""
    title = f"Figure 5. Grid shifts, {where} of {panel.name}\non MRPC, FlexRound, weights and inputs at 8 bit"
    return _single(panel, title, scale, " (paper: about 60)")


def figure6(panels: Sequence[Shifts], where: str, scale: str) -> Figure:
    """Grid shifts of one layer, ``where``, by several methods side by side.

    Panels of a model, named "model, method", share a vertical axis.
    """
    rows: dict[str, list[tuple[str, Shifts]]] = defaultdict(list)
    for panel in panels:
        model, _, method = panel.name.partition(", ")
        rows[model].append((method, panel))
    with style():
        title = f"Figure 6. Grid shifts, {where}, weights at 4 bit; orange: beyond one step"
        figure = new_figure(7.2, 2.3 * len(rows) + 0.3, title, scale)
        parts = figure.subfigures(len(rows), 1, squeeze=False)[:, 0]
        for part, (model, methods) in zip(parts, rows.items(), strict=True):
            part.suptitle(model, fontsize=8.5, fontweight="bold")
            row = part.subplots(1, len(methods), sharex=True, sharey=True, squeeze=False)[0]
            for axes, (method, panel) in zip(row, methods, strict=True):
                _scatter(axes, panel)
                axes.set_title(f"{method}: {panel.share:.1f} % beyond one step")
                axes.label_outer()
    return figure


def figure7(points: Sequence[Accuracies], published: Sequence[Point], where: str, scale: str) -> Figure:
    """Accuracy against calibration size of a network, ``where``: ours over seeds, and the paper's points if it has any.

    Raises:
        InputError: no points, or one without a value.
    """
    if not points or not all(len(point.values) for point in points):
        raise InputError("figure 7: a point without an evaluated run; evaluate the runs of every calibration size")
    # the bar of one seed has no length
    spreads = [float(np.std(p.values, ddof=1)) if len(p.values) > 1 else 0.0 for p in points]
    ours = [Point(p.size, p.method, float(np.mean(p.values)), s) for p, s in zip(points, spreads, strict=True)]
    with style():
        title = f"Figure 7. Accuracy against calibration size, {where}, weights at 4 bit"
        figure = new_figure(7.2 if published else 4.2, 3.0, title, scale)
        axes = figure.subplots(1, 2 if published else 1, squeeze=False)[0]
        _curves(axes[0], ours, f"ours: {_seeds(points)}")
        if published:
            _curves(axes[1], published, "the paper, on ImageNet: value and spread")
    return figure


def _single(panel: Shifts, title: str, scale: str, paper: str = "") -> Figure:
    """Draw the grid shifts of one weight; ``paper`` says how far the paper's go."""
    with style():
        figure = new_figure(4.2, 3.2, title, scale)
        axes = figure.subplots()
        _scatter(axes, panel)
        moved = f"{panel.share:.1f} % of the weights moved by more than one step (orange)"
        axes.set_title(f"{moved},\nthe farthest by {np.abs(panel.steps).max()}{paper}")
    return figure


def _histogram(axes: Axes, steps: np.ndarray, group: str, none: str) -> None:
    """Draw the counts of each integer change, those beyond one step in another colour; ``none`` stands for no bars."""
    if not steps.size:
        axes.text(0.5, 0.5, none, transform=axes.transAxes, ha="center")
        axes.set_axis_off()
        return
    changes, counts = np.unique(steps, return_counts=True)
    axes.bar(changes, counts, width=0.8, color=np.where(np.abs(changes) > 1, ORANGE, BLUE))
    axes.set_title(f"{group}: {steps.size} weights\n{share(steps):.1f} % beyond one step")
    axes.set(xlabel="change of the integer code", ylabel="weights", yscale="log", ylim=(0.7, None))
    reach = max(2, int(np.abs(changes).max()))
    axes.set_xlim(-reach - 0.6, reach + 0.6)
    axes.xaxis.get_major_locator().set_params(integer=True)


def _scatter(axes: Axes, panel: Shifts) -> None:
    """Draw each weight's grid shift against its value, shifts beyond one step in another colour."""
    steps = panel.steps
    # Rasterized: a conv of a real network has too many points for a vector file.
    look = {"s": 5, "linewidths": 0, "alpha": 0.5, "rasterized": True, "zorder": 2}
    axes.scatter(panel.weight.ravel(), steps, c=np.where(np.abs(steps) > 1, ORANGE, BLUE), **look)
    guide(axes, y_low=-1.5, y_high=1.5)
    axes.set(xlabel="pre-trained weight W", ylabel="grid shift from RTN")
    axes.yaxis.get_major_locator().set_params(integer=True)


def _curves(axes: Axes, points: Sequence[Point], title: str) -> None:
    """Draw one line with error bars for each method."""
    for index, method in enumerate(dict.fromkeys(point.method for point in points)):
        own = sorted(point for point in points if point.method == method)
        method_line(axes, index, method, [p.size for p in own], [p.value for p in own], [p.spread for p in own])
    sizes = sorted({point.size for point in points})
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [str(size) for size in sizes], minor=False)
    axes.set(title=title, xlabel="calibration samples", ylabel="top-1 accuracy (%)")
    axes.grid(axis="y")
    axes.legend(loc="lower right")


def _seeds(points: Sequence[Accuracies]) -> str:
    """Return what the error bars show and over how many seeds."""
    counts = sorted({len(point.values) for point in points})
    if counts == [1]:
        return "one seed"
    return f"mean and standard deviation, n = {' to '.join(map(str, dict.fromkeys((counts[0], counts[-1]))))} seeds"
