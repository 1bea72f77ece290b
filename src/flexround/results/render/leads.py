"""The one figure of the README: how far FlexRound is ahead of AdaRound in every cell, against what chance explains."""

import csv
import math
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from flexround.errors import InputError
from flexround.results.render.figure_style import BLUE, GREY, ORANGE, new_figure, style
from flexround.results.render.table_layout import Entry

VERDICTS = {  # of claims.csv -> words, colour and marker here
    "holds": ("better", BLUE, "o"),
    "inside the noise": ("inside the noise", GREY, "x"),
    "does not hold": ("worse", ORANGE, "v"),
}
REACH = 8.0  # in multiples of the noise; what is farther off stands at the edge
HEIGHT = 0.26  # inches a table
SPREAD = 0.5  # of a table's height, over which its points lie so that they can be told apart
GOLDEN = 0.618


class Margin(NamedTuple):
    """FlexRound's margin in one cell, in multiples of the noise, and the verdict on it."""

    place: str
    multiple: float
    verdict: str


def comparisons(text: str) -> list[Entry]:
    """Return the lines of ``claims.csv`` that compare FlexRound with AdaRound and were run, each cell once.

    A comparison is one of rows that differ in the rounding alone. ``text`` is that of the file.
    """
    found = {}
    for line in csv.DictReader(text.splitlines()):
        rival = line["recipe"].removesuffix("-tuned").replace("flexround", "adaround")
        if line["criterion"] == "better" and line["other_recipe"] == rival != line["recipe"] and line["margin"]:
            cell = tuple(line[name] for name in ("place", "section", "column", "metric", "bits", "recipe"))
            found[cell] = line
    return list(found.values())


def read(text: str) -> list[Margin]:
    """Return FlexRound's margins over AdaRound, see :func:`comparisons`.

    Raises:
        InputError: there is none.
    """
    lines = comparisons(text)
    if not lines:
        raise InputError("claims.csv compares FlexRound with AdaRound nowhere; make the tables, then the claims again")
    return [Margin(line["place"], multiple(line["margin"], line["noise"]), line["verdict"]) for line in lines]


def places(lines: Iterable[str]) -> list[str]:
    """Return tables and figures once each, in their order: tables first."""
    return sorted(set(lines), key=lambda place: (place.startswith("figure"), int(place.split()[-1])))


def draw(leads: list[Margin], scale: str) -> Figure:
    """Draw one line of points for each table, with how many are better, inside the noise and worse."""
    shown = places(lead.place for lead in leads)
    with style():
        figure = new_figure(7.2, HEIGHT * len(shown) + 1.3, "FlexRound against AdaRound in every cell", scale)
        axes = figure.subplots()
        axes.axvspan(-1, 1, color="#eeeeee", zorder=0)
        offsets = [SPREAD * (number * GOLDEN % 1 - 0.5) for number in range(len(leads))]  # from the table's line
        points = [(lead, shown.index(lead.place) + offset) for lead, offset in zip(leads, offsets, strict=True)]
        for verdict, (words, colour, marker) in VERDICTS.items():
            of_verdict = [(lead.multiple, y) for lead, y in points if lead.verdict == verdict]
            x, y = zip(*of_verdict, strict=True) if of_verdict else ((), ())
            axes.scatter(x, y, s=16, color=colour, marker=marker, linewidths=1, alpha=0.6, label=words)
        _count(axes, leads, shown)
        _finish(axes, shown, max(2.0, *(abs(lead.multiple) for lead in leads)))
    return figure


def _count(axes: Axes, leads: list[Margin], places: list[str]) -> None:
    """Write beside each table how many of its cells have which verdict."""
    counts = Counter((lead.place, lead.verdict) for lead in leads)
    for y, place in enumerate(places):
        text = "  ".join(f"{counts[place, verdict]:>3}" for verdict in VERDICTS)
        axes.text(
            1.01, y, text, transform=axes.get_yaxis_transform(), va="center", family="DejaVu Sans Mono", fontsize=7
        )
    heading = "better / noise / worse"
    axes.text(1.01, -1, heading, transform=axes.get_yaxis_transform(), va="center", fontsize=6.5, color=GREY)


def _finish(axes: Axes, places: list[str], reach: float) -> None:
    """Set limits, ticks, labels and the legend."""
    axes.axvline(0, color=GREY, linewidth=0.7, zorder=1)
    axes.set_yticks(range(len(places)), [place.capitalize() for place in places])
    axes.set(xlim=(-1.05 * reach, 1.05 * reach), ylim=(len(places) - 0.4, -1.6))
    axes.set_xlabel("FlexRound's lead in multiples of what chance explains (grey: within it)")
    axes.grid(axis="y")
    axes.legend(loc="upper left", ncols=len(VERDICTS), bbox_to_anchor=(0, 1.03))


def multiple(margin: str, noise: str) -> float:
    """Return a margin in multiples of the noise, at most ``REACH``."""
    value, chance = float(margin), float(noise or "inf")
    multiple = value / chance if chance else math.copysign(math.inf, value) if value else 0.0
    return max(-REACH, min(REACH, multiple))
