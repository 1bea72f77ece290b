"""The plots of the report: drawn like the figures, with a link from each point to its cell and a table of numbers."""

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from markupsafe import Markup
from matplotlib.figure import Figure

from flexround.results import sample_sizes
from flexround.results.claims.verdicts import FAILS, HOLDS, Judgement
from flexround.results.evaluated import read_run
from flexround.results.grid import Entry
from flexround.results.paired import Z
from flexround.results.paper_numbers import SETTING
from flexround.results.render import curves, leads, origins, words
from flexround.results.render.curves import Axis, CurvePoint
from flexround.results.render.figure_style import svg
from flexround.results.render.html import bar, link
from flexround.results.render.overview import Standing
from flexround.results.table_csv import number
from flexround.settings.plan import Plan

Values = Mapping[tuple[str, int], list[float]]  # values of the seeds, by method and calibration size


class Picture(NamedTuple):
    """A drawing with a table of its numbers; a table with bars needs no drawing."""

    label: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    svg: Markup | None = None


class Plot(NamedTuple):
    """Pictures of one kind, among which the reader chooses; without pictures ``empty`` gives the reason."""

    name: str
    title: str
    text: str
    empty: str
    pictures: list[Picture]


class Sheets:
    """The sheets of the page's cells, by a value's place; a click on a point opens its sheet."""

    def __init__(self, standings: Iterable[Standing]) -> None:
        self.said: dict[str, str] = {}  # description of each sheet
        self._names: dict[tuple[str, ...], str] = {}
        for standing in standings:
            for entry, sheet in standing.sheets.items():
                self._names[_place(entry, standing.table.place)] = sheet
                self.said[sheet] = f"{standing.table.title}, {cell_of(entry, entry.method)}: {entry.value}"

    def of(self, line: Judgement) -> str:
        """Return the sheet of the first cell of a line of claims.csv; empty if the page has none."""
        return self._names.get(_place(line, line.place), "")

    def picture(
        self, plot: str, label: str, drawn: Figure, header: Sequence[str], rows: Sequence[Sequence[str]]
    ) -> Picture:
        """Return a figure with links to the sheets."""
        return Picture(label, header, rows, Markup(svg(drawn, f"{plot}, {label}", self.said)))


def of_leads(lines: Sequence[Judgement], sheets: Sheets, scale: str) -> Plot:
    """Return FlexRound's leads over AdaRound: all in multiples of the noise, then each table's with their noise."""
    title = "FlexRound's lead over AdaRound"
    text = (
        "Right of 0, FlexRound is better. The compared rows differ in the rounding and, at some scales, in iterations, "
        "which claims.csv has. The leads of one table are in points, for perplexities in percent; the bar behind each "
        "lead shows how many times larger it is than its noise. A point, or a cell's name, links to FlexRound's cell."
    )
    pictures = []
    if lines:
        places = leads.places(line.place for line in lines)
        counts = Counter((line.place, line.verdict) for line in lines)
        header = ["", *(words_of for words_of, *_ in leads.VERDICTS.values())]
        rows = [[p.capitalize(), *(str(counts[p, verdict]) for verdict in leads.VERDICTS)] for p in places]
        drawn = leads.draw(lines, "", scale, list(map(sheets.of, lines)))
        pictures = [sheets.picture(title, "all tables", drawn, header, rows)]
        pictures += [_of_place(place, [line for line in lines if line.place == place], sheets) for place in places]
    empty = "No claims were judged: make the claims of this scale."
    return Plot("leads", title, text, empty, pictures)


def of_bits(standings: Iterable[Standing], plan: Plan, sheets: Sheets) -> Plot:
    """Return values against bits, for each table in which a method has several numbers of bits."""
    title = "Accuracy against bits"
    text = (
        f"A line for each method, bars of {Z} standard errors on the test set, dashed: full precision. What lies far "
        "off is named below. A point is a link to its cell."
    )
    pictures = [found for standing in standings if (found := _against_bits(title, standing, plan, sheets))]
    return Plot("bits", title, text, "No table has a method at several bits with values.", pictures)


def sizes(plan: Plan, root: Path) -> Values:
    """Return the values of all evaluated seeds, by method and calibration size."""
    found = sample_sizes.values(sample_sizes.of(plan), plan.scale.name, root / "results")
    return {key: values for key, values in found.items() if values}


def of_sizes(plan: Plan, found: Values, sheets: Sheets) -> Plot:
    """Return accuracy against calibration size: the values from :func:`sizes`, and the paper's."""
    spec, paper = plan.params.figures.sample_size, sample_sizes.of(plan).points
    ours = [curves.of_seeds("computed here", method, str(size), values) for (method, size), values in found.items()]
    theirs = [CurvePoint("the paper's", one.method, str(one.size), one.value, one.spread) for one in paper]
    title, axis = "Accuracy against calibration size", Axis("calibration samples", "top-1", sizes=True)
    several = [points for points in (ours, theirs) if len({point.at for point in points}) > 1]
    pictures = [_of_curves(title, points[0].panel, points, axis, sheets) for points in several]
    text = f"{spec.checkpoint}, weights at 4 bit: mean and standard deviation over seeds."
    empty = f"No other calibration size was computed: make results/figure{spec.number}.pdf."
    return Plot("sizes", title, text, empty, pictures)


def of_seeds(standings: Iterable[Standing], found: Values, root: Path, sheets: Sheets) -> Plot:
    """Return the distance of each seed from its cell's median, for tables and for calibration sizes."""
    lines: dict[str, list[tuple[str, list[float]]]] = defaultdict(list)
    for standing in standings:
        for entry, sheet in standing.sheets.items():
            if values := _seeds(entry, standing, root):
                lines[standing.table.title].append((_linked(cell_of(entry, entry.method), sheet), values))
    for (method, size), values in found.items():
        if len(values) > 1:
            lines["calibration sizes"].append((f"{method}, {size} samples", values))
    text = "The bar behind the value of a seed shows how far it is from the median of the cell."
    empty = "Every cell has one seed, or its seeds were not computed here: --config seeds=3 makes three."
    pictures = [_over_seeds(label, of_label) for label, of_label in lines.items()]
    return Plot("seeds", "Spread over seeds", text, empty, pictures)


def whole(plan: Plan, recipe: str) -> bool:
    """Whether a recipe quantizes nothing."""
    known = plan.params.recipes.recipes.get(recipe)
    return known is not None and not known.quantized


def cell_of(line: Entry | Judgement, method: str) -> str:
    """Return the place of a value in words: section, column, metric, method and bits."""
    return words.listed(line.section, line.column, words.of(line.metric), method, line.bits)


def _place(line: Entry | Judgement, place: str) -> tuple[str, ...]:
    """Return the fields that match a comparison with a cell of a table."""
    return place, line.section, line.column, line.metric, line.bits, line.recipe


def _of_place(place: str, lines: list[Judgement], sheets: Sheets) -> Picture:
    """Return the leads of one table with their noise; for a figure, the number of samples names a row."""
    kinds = {HOLDS: "good", FAILS: "bad"}
    multiples = [abs(leads.multiple(line.margin, line.noise)) for line in lines]
    rows = []
    for line, multiple in zip(lines, multiples, strict=True):
        method = line.one.rpartition(", ")[2] if place.startswith("figure") else line.one.split()[0]
        lead = bar(line.margin, 100 * multiple / max(2.0, *multiples), kinds.get(line.verdict, ""))
        others = line.noise, words.probability(line.p_value), leads.VERDICTS[line.verdict][0]
        rows.append([_linked(cell_of(line, method), sheets.of(line)), lead, *others])
    return Picture(place, ["cell", "lead", "noise", "p", "verdict"], rows)


def _against_bits(title: str, standing: Standing, plan: Plan, sheets: Sheets) -> Picture | None:
    """Return the values of a table against bits, a panel for each column; None if no method has two numbers of bits."""
    panels: dict[str, list[Entry]] = {}
    for entry in standing.entries:
        if entry.value and entry.metric != SETTING:
            panel = words.listed(entry.section, entry.column, words.of(entry.metric))
            panels.setdefault(panel, []).append(entry)
    points, names = [], standing.sheets
    for panel, entries in panels.items():
        widths = {(entry.method, entry.bits) for entry in entries}
        several = {method for method, count in Counter(method for method, _ in widths).items() if count > 1}
        of_panel = [
            CurvePoint(panel, entry.method, entry.bits, float(entry.value), Z * float(entry.stderr or 0), names[entry])
            for entry in entries
            if entry.method in several and not whole(plan, entry.recipe)
        ]
        best = [entry for entry in entries if of_panel and whole(plan, entry.recipe)]
        points += [*of_panel, *(CurvePoint(panel, entry.method, "", float(entry.value)) for entry in best)]
    axis = Axis("bits, weights/activations", "", window=None)
    return _of_curves(title, standing.table.title, points, axis, sheets) if points else None


def _of_curves(title: str, label: str, points: Sequence[CurvePoint], axis: Axis, sheets: Sheets) -> Picture:
    """Return the lines of all methods, with their values as a table: a column for each place of the axis."""
    places = curves.places(points)
    rows: dict[tuple[str, str], dict[str, str]] = {}
    for point in points:
        if point.at:
            spread = f" ± {number(point.bar)}" if axis.sizes and point.bar else ""
            row = rows.setdefault((point.panel, point.method), {})
            row[point.at] = _linked(number(point.value) + spread, point.sheet)
    told = [[*names, *(row.get(at, "") for at in places)] for names, row in rows.items()]
    drawn = curves.draw(points, axis, "", "")
    return sheets.picture(title, label, drawn, ["column", "method", *places], told)


def _seeds(entry: Entry, standing: Standing, root: Path) -> list[float]:
    """Return the values of the evaluated seeds of a cell with several seeds.

    A row of an ``own=`` file has no values if the page was made without the file.
    """
    if int(entry.n_seeds or 0) < 2:
        return []
    names, run = standing.table.metric_names, (entry.task, entry.checkpoint, entry.recipe)
    cells = (cell for cell in standing.table.cells() if cell.column.name == entry.column)
    of = (m for cell in cells if (cell.task, cell.checkpoint, cell.row.recipe) == run for m in cell.metrics)
    metrics = [m for m in of if names.get(m, m) == entry.metric]
    runs = origins.evaluated(entry, root) if metrics else []
    return [read_run(run, root / "results", metrics)[metrics[0]].value for run in runs]


def _over_seeds(label: str, lines: Sequence[tuple[str, list[float]]]) -> Picture:
    medians = [statistics.median(values) for _, values in lines]
    away = [[abs(value - median) for value in values] for (_, values), median in zip(lines, medians, strict=True)]
    largest = max(map(max, away)) or 1.0
    rows = []
    for (name, values), median, of_cell in zip(lines, medians, away, strict=True):
        seeds = [bar(number(value), 100 * far / largest) for value, far in zip(values, of_cell, strict=True)]
        rows.append([name, number(median), *seeds])
    return Picture(label, ["cell", "median", *(f"seed {index}" for index in range(len(lines[0][1])))], rows)


def _linked(text: str, sheet: str) -> str:
    return link(text, f"cell-{sheet}" if sheet else "")
