"""Figures of grid shifts: the distance of a layer's integer codes from round-to-nearest."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from flexround.results.render.figure_style import BLUE, ORANGE, guide, new_figure, style


@dataclasses.dataclass(frozen=True)
class Shifts:
    """The integer codes of one layer, after learning and by round-to-nearest; all arrays have the same shape."""

    name: str  # of the model
    weight: np.ndarray  # pre-trained, float
    learned: np.ndarray  # integer codes after learning
    rtn: np.ndarray  # integer codes of round-to-nearest
    method: str = ""  # if several methods are compared
    paper: str = ""  # the paper's result: a share, or the largest shift

    @property
    def steps(self) -> np.ndarray:
        """Learned minus RTN codes, int64, flat; int64 keeps differences of unsigned codes from wrapping around."""
        return self.learned.ravel().astype(np.int64) - self.rtn.ravel().astype(np.int64)

    @property
    def share(self) -> float:
        """Percentage of weights rounded aggressively, see :func:`share`."""
        return share(self.steps)


def share(steps: np.ndarray) -> float:
    """Return the percentage of integer changes beyond one step."""
    return 100.0 * float(np.mean(np.abs(steps) > 1))


def draw(panels: Sequence[Shifts], title: str, scale: str, large_weight: float | None = None) -> Figure:
    """Draw the shifts of one layer: one panel, or a row for each model with its methods side by side on equal axes.

    With ``large_weight`` each model also gets histograms of the weights up to and above this value.
    """
    if len(panels) == 1 and large_weight is None:
        return _single(panels[0], title, scale)
    models: dict[str, list[Shifts]] = {}
    for panel in panels:
        models.setdefault(panel.name, []).append(panel)
    with style():
        figure = new_figure(7.2, 2.4 * len(models) + 0.3, title, scale)
        parts = figure.subfigures(len(models), 1, squeeze=False)[:, 0]
        for part, (model, of_model) in zip(parts, models.items(), strict=True):
            part.suptitle(model, fontsize=8.5, fontweight="bold")
            if large_weight is not None:
                _with_histograms(part, of_model[0], large_weight)
                continue
            row = part.subplots(1, len(of_model), sharex=True, sharey=True, squeeze=False)[0]
            for axes, panel in zip(row, of_model, strict=True):
                _scatter(axes, panel)
                axes.set_title(f"{panel.method}: {panel.share:.1f} % beyond one step")
                axes.label_outer()
    return figure


def _with_histograms(part: Figure, panel: Shifts, large_weight: float) -> None:
    """Draw histograms for small and large weights beside the grid shifts."""
    paper = f" (paper: {panel.paper})" if panel.paper else ""
    moved = f"{panel.name}: {panel.share:.1f} % of the weights moved by more than one step{paper}"
    part.suptitle(moved, fontsize=8.5, fontweight="bold")
    small, large, scatter = part.subplots(1, 3)
    above = np.abs(panel.weight.ravel()) > large_weight
    _histogram(small, panel.steps[~above], f"|W| ≤ {large_weight:g}", f"no weight up to {large_weight:g}")
    _histogram(large, panel.steps[above], f"|W| > {large_weight:g}", f"no weight above {large_weight:g}")
    _scatter(scatter, panel)
    scatter.set_title("shift from the RTN grid\n(orange: beyond one step)")
    if above.any():
        guide(scatter, x_low=-large_weight, x_high=large_weight)


def _single(panel: Shifts, title: str, scale: str) -> Figure:
    with style():
        figure = new_figure(4.2, 3.2, title, scale)
        axes = figure.subplots()
        _scatter(axes, panel)
        moved = f"{panel.share:.1f} % of the weights moved by more than one step (orange)"
        paper = f" (paper: {panel.paper})" if panel.paper else ""
        axes.set_title(f"{moved},\nthe farthest by {np.abs(panel.steps).max()}{paper}")
    return figure


def _histogram(axes: Axes, steps: np.ndarray, group: str, none: str) -> None:
    """Draw the count of each integer change, with another colour beyond one step; ``none`` replaces missing bars."""
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
    # Rasterized: a convolution of a real network has too many points for a vector file.
    look = {"s": 5, "linewidths": 0, "alpha": 0.5, "rasterized": True, "zorder": 2}
    axes.scatter(panel.weight.ravel(), steps, c=np.where(np.abs(steps) > 1, ORANGE, BLUE), **look)
    guide(axes, y_low=-1.5, y_high=1.5)
    axes.set(xlabel="pre-trained weight W", ylabel="grid shift from RTN")
    axes.yaxis.get_major_locator().set_params(integer=True)
