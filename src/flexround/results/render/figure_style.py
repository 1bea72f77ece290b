"""How every figure looks and is written: one style, colours that colour-blind readers can tell apart, stable bytes."""

import functools
from collections.abc import Sequence
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from flexround.io.artifacts import atomic_write

# Okabe and Ito's palette
BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#777777"
METHOD_COLOURS = (BLUE, ORANGE, "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
METHOD_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
PNG_DPI = 150

STYLE = {
    "font.family": "DejaVu Sans",
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.linewidth": 0.6,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.5,
    "legend.frameon": False,
    "legend.fontsize": 7,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "figure.constrained_layout.use": True,
    "pdf.fonttype": 42,  # TrueType: some publishers refuse type 3
}


def style() -> "matplotlib.RcParams":
    """Return a context with the suite's style, whatever the user's matplotlibrc says."""
    return matplotlib.rc_context(matplotlib.rcParamsDefault | STYLE)


def new_figure(width: float, height: float, title: str, scale: str) -> Figure:
    """Return an empty figure (sizes in inches) whose title ends in the scale; no pyplot, so no global state."""
    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)
    figure.suptitle(f"{title} (scale: {scale})", fontsize=9)
    return figure


def guide(axes: Axes, **levels: float) -> None:
    """Draw thin dashed lines at ``x`` or ``y`` values."""
    for name, level in levels.items():
        draw = axes.axvline if name.startswith("x") else axes.axhline
        draw(level, color=GREY, linewidth=0.7, linestyle="--", zorder=1)


def method_line(
    axes: Axes, index: int, name: str, x: Sequence[float], y: Sequence[float], spread: Sequence[float]
) -> None:
    """Draw a method's values with error bars; ``index`` chooses colour and marker, different ones for seven methods."""
    axes.errorbar(
        x,
        y,
        yerr=spread,
        label=name,
        color=METHOD_COLOURS[index % len(METHOD_COLOURS)],
        marker=METHOD_MARKERS[index % len(METHOD_MARKERS)],
        markersize=4,
        linewidth=1.2,
        capsize=2.5,
    )


def save(figure: Figure, path: Path) -> None:
    """Write ``path``.pdf and ``path``.png atomically, without dates or versions: equal figures are equal files."""
    with style():
        for suffix, metadata in ((".pdf", {"CreationDate": None, "Producer": None}), (".png", {"Software": None})):
            write = functools.partial(figure.savefig, metadata=metadata, dpi=PNG_DPI)
            atomic_write(path.with_name(path.name + suffix), write)
