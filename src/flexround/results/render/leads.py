"""FlexRound's lead over AdaRound in all cells, in multiples of the noise."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from flexround.results.claims.verdicts import FAILS, HOLDS, NOISE, Judgement
from flexround.results.render.figure_style import BLUE, GREY, ORANGE, new_figure, style

VERDICTS = {  # words, colour and marker of each verdict
    HOLDS: ("better", BLUE, "o"),
    NOISE: ("inside the noise", GREY, "x"),
    FAILS: ("worse", ORANGE, "v"),
}
REACH = 8.0  # in multiples of the noise; larger leads are drawn at the edge
HEIGHT = 0.26  # inches per table
SPREAD = 0.5  # share of a table's height over which its points are spread, to keep them apart
GOLDEN = 0.618


def draw(lines: Sequence[Judgement], title: str, scale: str) -> Figure:
    """Draw one line of points for each table, with the counts of better, worse and points inside the noise.

    ``lines`` compare FlexRound with AdaRound.
    """
    shown = places(line.place for line in lines)
    offsets = [SPREAD * (number * GOLDEN % 1 - 0.5) for number in range(len(lines))]  # from the table's line
    x = np.array([multiple(line.margin, line.noise) for line in lines])
    y = np.array([shown.index(line.place) + offset for line, offset in zip(lines, offsets, strict=True)])
    reach = max(2.0, *abs(x))
    with style():
        figure = new_figure(7.2, HEIGHT * len(shown) + 1.3, title, scale)
        axes = figure.subplots()
        axes.axvspan(-1, 1, color=GREY, alpha=0.15, linewidth=0, zorder=0)
        for verdict, (words, colour, marker) in VERDICTS.items():
            own = [line.verdict == verdict for line in lines]
            look = {"s": 16, "color": colour, "marker": marker, "linewidths": 1, "alpha": 0.6, "label": words}
            axes.scatter(x[own], y[own], **look)
        _count(axes, lines, shown)
        axes.axvline(0, color=GREY, linewidth=0.7, zorder=1)
        axes.set_yticks(range(len(shown)), [place.capitalize() for place in shown])
        axes.set(xlim=(-1.05 * reach, 1.05 * reach), ylim=(len(shown) - 0.4, -1.6))
        if reach == REACH:
            inner = np.arange(-REACH + 2, REACH, 2)
            labels = [f"≤ −{REACH:g}", *(f"{tick:g}".replace("-", "−") for tick in inner), f"≥ {REACH:g}"]
            axes.set_xticks([-REACH, *inner, REACH], labels)
        axes.set_xlabel("FlexRound's lead in multiples of what chance explains (grey: within it)")
        axes.grid(axis="y")
        axes.legend(loc="upper left", ncols=len(VERDICTS), bbox_to_anchor=(0, 1.03))
    return figure


def places(names: Iterable[str]) -> list[str]:
    """Return the distinct tables and figures in order, tables first."""
    return sorted(set(names), key=lambda place: (place.startswith("figure"), int(place.split()[-1])))


def multiple(margin: str, noise: str) -> float:
    """Return a margin in multiples of the noise, at most ``REACH``."""
    value, chance = float(margin or 0), float(noise or math.inf)
    multiple = value / chance if chance else math.copysign(math.inf, value) if value else 0.0
    return max(-REACH, min(REACH, multiple))


def _count(axes: Axes, lines: Sequence[Judgement], shown: Sequence[str]) -> None:
    """Write beside each table the number of its cells with each verdict."""
    counts = Counter((line.place, line.verdict) for line in lines)
    beside = axes.get_yaxis_transform()
    for y, place in enumerate(shown):
        text = "  ".join(f"{counts[place, verdict]:>3}" for verdict in VERDICTS)
        axes.text(1.01, y, text, transform=beside, va="center", family="DejaVu Sans Mono", fontsize=7)
    axes.text(1.01, -1, "better / noise / worse", transform=beside, va="center", fontsize=6.5, color=GREY)
