"""The plots of the report: drawn like the figures, with a table of the drawn numbers."""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from markupsafe import Markup

from flexround.results import sample_sizes
from flexround.results.claims.verdicts import Judgement
from flexround.results.grid import Entry
from flexround.results.paired import Z
from flexround.results.paper_numbers import SETTING
from flexround.results.render import budgets, curves, leads, words
from flexround.results.render.curves import Axis, CurvePoint
from flexround.results.render.figure_style import svg
from flexround.results.render.overview import Standing
from flexround.results.table_csv import number
from flexround.settings.plan import Plan


class Picture(NamedTuple):
    """A drawing with a table of its numbers."""

    label: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    svg: Markup


class Plot(NamedTuple):
    """Pictures of one kind, among which the reader chooses; without pictures ``empty`` gives the reason."""

    name: str
    title: str
    text: str
    empty: str
    pictures: list[Picture]


def of_leads(lines: Sequence[Judgement], scale: str) -> Plot:
    """Return FlexRound's leads over AdaRound in multiples of the noise, and their counts by table."""
    title = "FlexRound's lead over AdaRound"
    text = (
        "Right of 0, FlexRound is better. The compared rows differ in the rounding and, at some scales, in iterations, "
        "which claims.csv has. The claims below list each lead with its noise."
    )
    pictures = []
    if lines:
        places = leads.places(line.place for line in lines)
        counts = Counter((line.place, line.verdict) for line in lines)
        header = ["", *(words_of for words_of, *_ in leads.VERDICTS.values())]
        rows = [[p.capitalize(), *(str(counts[p, verdict]) for verdict in leads.VERDICTS)] for p in places]
        pictures = [Picture("all tables", header, rows, svg(leads.draw(lines, "", scale), title))]
    return Plot("leads", title, text, "No claims were judged: make the claims of this scale.", pictures)


def of_budgets(plan: Plan, root: Path) -> list[Plot]:
    """Return metric and error of methods against iterations and CPU seconds, for each figure of budgets."""
    text = "Each method at the rate that its held-out calibration error prefers at that budget."
    header, found = ["network", "method", "iterations", "metric", "value", "error / RTN's", "CPU seconds"], []
    for figure, points in budgets.load(root, plan).items():
        title = plan.params.figures[figure].title
        rows = [[*map(str, point[:4]), *map(number, point[4:])] for point in points]
        picture = Picture(title, header, rows, svg(budgets.draw(points, "", ""), title))
        found.append(Plot(f"budgets-{figure}", title, text, "", [picture]))
    return found


def of_bits(standings: Iterable[Standing], plan: Plan) -> Plot:
    """Return values against bits, for each table in which a method has several numbers of bits."""
    title = "Accuracy against bits"
    text = (
        f"A line for each method, bars of {Z} standard errors on the test set, dashed: full precision. Values far "
        "off are named below."
    )
    pictures = [found for standing in standings if (found := _against_bits(title, standing, plan))]
    return Plot("bits", title, text, "No table has a method at several bits with values.", pictures)


def of_sizes(plan: Plan, root: Path) -> Plot:
    """Return accuracy against calibration size: the values of the runs in ``root``/results, and the paper's."""
    spec, shown = plan.params.figures.sample_size, sample_sizes.of(plan)
    found = sample_sizes.values(shown, plan.scale.name, root / "results")
    ours = [
        curves.of_seeds("computed here", method, str(at), values) for (method, at), values in found.items() if values
    ]
    theirs = [CurvePoint("the paper's", one.method, str(one.size), one.value, one.spread) for one in shown.points]
    title, axis = "Accuracy against calibration size", Axis("calibration samples", "top-1", sizes=True)
    several = [points for points in (ours, theirs) if len({point.at for point in points}) > 1]
    pictures = [_of_curves(title, points[0].panel, points, axis) for points in several]
    text = f"{spec.checkpoint}, weights at 4 bit: mean and standard deviation over seeds."
    empty = f"No other calibration size was computed: make results/figure{spec.number}.pdf."
    return Plot("sizes", title, text, empty, pictures)


def _against_bits(title: str, standing: Standing, plan: Plan) -> Picture | None:
    """Return the values of a table against bits, a panel for each column; None if no method has two numbers of bits."""
    recipes = plan.params.recipes.recipes
    panels: dict[str, list[Entry]] = {}
    for entry in standing.entries:
        if entry.value and entry.metric != SETTING:
            panel = words.listed(entry.section, entry.column, words.of(entry.metric))
            panels.setdefault(panel, []).append(entry)
    points = []
    for panel, entries in panels.items():
        whole = [entry for entry in entries if entry.recipe in recipes and not recipes[entry.recipe].quantized]
        widths = {(entry.method, entry.bits) for entry in entries}
        several = {method for method, count in Counter(method for method, _ in widths).items() if count > 1}
        of_panel = [
            CurvePoint(panel, entry.method, entry.bits, float(entry.value), Z * float(entry.stderr or 0))
            for entry in entries
            if entry.method in several and entry not in whole
        ]
        if of_panel:
            points += [*of_panel, *(CurvePoint(panel, entry.method, "", float(entry.value)) for entry in whole)]
    axis = Axis("bits, weights/activations", "", window=None)
    return _of_curves(title, standing.table.title, points, axis) if points else None


def _of_curves(title: str, label: str, points: Sequence[CurvePoint], axis: Axis) -> Picture:
    """Return the lines of all methods, with their values as a table: a column for each place of the axis."""
    places = curves.places(points)
    rows: dict[tuple[str, str], dict[str, str]] = {}
    for point in points:
        if point.at:
            spread = f" ± {number(point.bar)}" if axis.sizes and point.bar else ""
            rows.setdefault((point.panel, point.method), {})[point.at] = number(point.value) + spread
    told = [[*names, *(row.get(at, "") for at in places)] for names, row in rows.items()]
    drawn = svg(curves.draw(points, axis, "", ""), f"{title}, {label}")
    return Picture(label, ["column", "method", *places], told, drawn)
