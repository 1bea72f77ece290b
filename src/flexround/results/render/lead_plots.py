"""The plots of FlexRound's leads over AdaRound, as data for the report."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from flexround.results.claims.verdicts import FAILS, HOLDS, NOISE
from flexround.results.paper_numbers import DECIMALS
from flexround.results.render.leads import GOLDEN, REACH, SPREAD, multiple, places
from flexround.results.render.plots import LINE, Choice, Plot, Sheets, named_lines, place_of
from flexround.results.render.table_layout import Entry

VERDICTS = {HOLDS: ("better", 2), NOISE: ("inside the noise", 7), FAILS: ("worse", 1)}  # words; look, see plots.js


class Spot(NamedTuple):
    """A point, what is said of it, and the sheet that it opens."""

    x: float
    y: float
    text: str
    sheet: str


def plot(lines: Sequence[Entry], sheets: Sheets) -> Plot:
    """Return FlexRound's leads over AdaRound: all in multiples of the noise, those of each table with intervals."""
    tables = places(line["place"] for line in lines)
    each = [_of_place(place, [line for line in lines if line["place"] == place], sheets) for place in tables]
    text = (
        "Right of 0: FlexRound is better. Rows differ in the rounding alone. Of one table: points, for perplexities "
        "percent, with the noise, inside of which chance may be why. A click on a point opens FlexRound's cell, "
        "as do the links in the numbers of one table."
    )
    empty = "No claims were judged: make the claims of this scale."
    return Plot(
        "leads", "FlexRound's lead over AdaRound", text, empty, [_of_all(lines, tables, sheets), *each] if lines else []
    )


def _of_all(lines: Sequence[Entry], tables: list[str], sheets: Sheets) -> Choice:
    """Return all leads in multiples of the noise, a line of points for each table."""
    spots: dict[str, list[Spot]] = {verdict: [] for verdict in VERDICTS}
    for index, line in enumerate(lines):
        y = tables.index(line["place"]) + SPREAD * (index * GOLDEN % 1 - 0.5)
        x = multiple(line["margin"], line["noise"])
        spots[line["verdict"]].append(
            Spot(round(x, DECIMALS), round(y, DECIMALS), _said(line), sheets.of(line, line["place"]))
        )
    traces = [_points(verdict, points) for verdict, points in spots.items() if points]
    layout = {
        "height": 110 + 22 * len(tables),
        "xaxis": {"title": {"text": f"lead / noise, at most {REACH:g}"}},
        "yaxis": {
            "tickvals": list(range(len(tables))),
            "ticktext": [table.capitalize() for table in tables],
            "range": [len(tables) - 0.4, -0.6],
        },
        "shapes": [{"type": "rect", "x0": -1, "x1": 1, "yref": "paper", "y0": 0, "y1": 1}],
    }
    counts = [
        [str(sum((line["place"], line["verdict"]) == (table, verdict) for line in lines)) for verdict in VERDICTS]
        for table in tables
    ]
    rows = [[table.capitalize(), *count] for table, count in zip(tables, counts, strict=True)]
    return Choice("all tables", traces, layout, [["", *(name for name, _ in VERDICTS.values())], *rows])


def _of_place(place: str, lines: list[Entry], sheets: Sheets) -> Choice:
    """Return the leads of one table with their noise."""
    names = [_cell(line) for line in lines]
    traces = []
    for verdict in VERDICTS:
        own = [index for index, line in enumerate(lines) if line["verdict"] == verdict]
        if own:
            points = [
                Spot(float(lines[index]["margin"]), float(index), _said(lines[index]), sheets.of(lines[index], place))
                for index in own
            ]
            noise = [float(lines[index]["noise"] or "nan") for index in own]
            bars = {"array": [None if value != value else value for value in noise]}
            traces.append(_points(verdict, points) | {"error_x": bars})
    axis = {"title": {"text": "lead, in points or percent"}}
    layout = {"height": 110 + LINE * len(lines), "xaxis": axis, "yaxis": named_lines(names)}
    header = ["cell", "lead", "noise", "p", "verdict"]
    rows = [
        [name.replace("<br>", ", "), line["margin"], line["noise"], line["p_value"], VERDICTS[line["verdict"]][0]]
        for name, line in zip(names, lines, strict=True)
    ]
    return Choice(place, traces, layout, [header, *rows], [[sheets.of(line, place)] for line in lines])


def _points(verdict: str, points: list[Spot]) -> dict[str, Any]:
    """Return the trace of what has one verdict."""
    name, look = VERDICTS[verdict]
    x, y, text, sheets = (list(values) for values in zip(*points, strict=True))
    trace = {"name": f"{name} ({len(points)})", "look": look, "mode": "markers", "x": x, "y": y, "text": text}
    return trace | {"customdata": sheets}


def _said(line: Entry) -> str:
    """Return a comparison in words, for who points at it."""
    name = _cell(line).replace("<br>", ", ")
    return f"{line['place'].capitalize()}, {name}: {float(line['margin']):+.{DECIMALS}f} ± {line['noise'] or 'unknown'}"


def _cell(line: Entry) -> str:
    """Return where a comparison stands, on two lines: with B or Q, in the figure with the number of samples."""
    of_figure = line["place"].startswith("figure")
    return place_of(line, line["one"].rpartition(", ")[2] if of_figure else line["one"].split()[0])
