"""The style and files of every figure: one look, colours for colour-blind readers, stable bytes.

A figure is drawn once, then written as PDF and PNG files, or as SVG for the report.
"""

import functools
import html
import io
import re
import textwrap
from pathlib import Path

import matplotlib
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from flexround.io.artifacts import atomic_write

# Okabe and Ito's palette
BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#777777"
METHOD_COLOURS = (BLUE, ORANGE, "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
METHOD_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
PNG_DPI = 150
METADATA = {".pdf": {"CreationDate": None, "Producer": None}, ".png": {"Software": None}}  # omitted metadata
LETTERS = 15  # of a title, per inch

STYLE = {
    "font.family": "DejaVu Sans",
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.linewidth": 0.6,
    "grid.color": "#888888",
    "grid.alpha": 0.3,  # on white and on black
    "grid.linewidth": 0.5,
    "legend.frameon": False,
    "legend.fontsize": 7,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "figure.constrained_layout.use": True,
    "pdf.fonttype": 42,  # TrueType: some publishers refuse type 3
    "svg.fonttype": "none",  # text stays text: it follows the page's theme and is searchable
}


def style() -> "matplotlib.RcParams":
    """Return a context with the suite's style, independent of the user's matplotlibrc."""
    return matplotlib.rc_context(matplotlib.rcParamsDefault | STYLE)


def new_figure(width: float, height: float, title: str, scale: str) -> Figure:
    """Return an empty figure (sizes in inches) whose title ends with the scale; without pyplot's global state.

    An empty ``title`` gives a figure without title: the report has its own headings.
    """
    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)
    if title:
        lines = textwrap.wrap(f"{title} (scale: {scale})", int(LETTERS * width))
        figure.suptitle("\n".join(lines), fontsize=9)
    return figure


def guide(axes: Axes, **levels: float) -> None:
    """Draw thin dashed lines at ``x`` or ``y`` values."""
    for name, level in levels.items():
        draw = axes.axvline if name.startswith("x") else axes.axhline
        draw(level, color=GREY, linewidth=0.7, linestyle="--", zorder=1)


def svg(figure: Figure, name: str) -> Markup:
    """Return a figure without background as an SVG element for a page, equal for equal figures.

    ``name`` is unique on the page.
    """
    text = io.StringIO()
    with style(), matplotlib.rc_context({"svg.hashsalt": name}):
        for part in (figure, *figure.axes):
            part.patch.set_facecolor("none")
        FigureCanvasSVG(figure).print_svg(text, metadata={"Date": None, "Creator": None})  # savefig draws it twice
    drawn = text.getvalue()
    drawn = drawn[drawn.index("<svg") :]
    drawn = re.sub(r'<metadata>.*?</metadata>|<style.*?</style>| xmlns(:\w+)?="[^"]*"', "", drawn, flags=re.DOTALL)
    drawn = re.sub(r'<g id="[^"]*"', "<g", drawn)  # the same in every figure
    facts = f'role="img" aria-label="{html.escape(name)}" style="--pt: {72 * figure.get_figwidth():.0f}"'
    return Markup(re.sub(r'<svg width="[^"]*" height="[^"]*"', f"<svg {facts}", drawn))


def save(figure: Figure, *paths: Path) -> None:
    """Write a figure to PDF and PNG files atomically, without dates or versions: equal figures give equal files."""
    with style():
        for path in paths:
            atomic_write(path, functools.partial(figure.savefig, metadata=METADATA.get(path.suffix), dpi=PNG_DPI))
