"""The plots of the report as data: what the page's script draws with plotly, and the same numbers as rows."""

import functools
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from flexround.results import sample_sizes
from flexround.results.evaluated import read_run
from flexround.results.paired import Z
from flexround.results.paper_numbers import DECIMALS, SETTING, Point, load_figure7
from flexround.results.render import origins, words
from flexround.results.render.overview import Standing
from flexround.results.render.table_layout import Entry
from flexround.results.table_csv import number
from flexround.settings.plan import Plan

LINE = 30  # pixels that a line of points takes
FAR = 3  # medians of the distance from full precision; what is twice as far off is outside the picture at first
LEAST = 0.05  # of full precision: no picture shows less
STAGGER = 0.04  # of the way between bits, so that bars of several methods can be told apart
Numbers = list[list[str]]  # rows of a table, the header first


class Choice(NamedTuple):
    """One picture: plotly's traces and layout, without colours, and its numbers. ``look`` is a trace's colour.

    ``sheets`` are the sheets that cells of the numbers' rows lead to, from the left; empty: none.
    """

    label: str
    traces: list[dict[str, Any]]
    layout: dict[str, Any]
    numbers: Numbers
    sheets: Sequence[Sequence[str]] = ()


class Sheets:
    """The sheets of the page's cells, by where a value stands: what a click on a point opens."""

    def __init__(self, standings: Iterable[Standing]) -> None:
        self._ids = {
            self._place(entry, standing.table.place): f"{standing.table.number}.{index}"
            for standing in standings
            for index, entry in enumerate(standing.layout.entries if standing.layout else [])
        }

    def of(self, entry: Entry, place: str) -> str:
        """Return the sheet of an entry of a table, or of a line of claims.csv; empty if the page has none."""
        return self._ids.get(self._place(entry, place), "")

    def _place(self, entry: Entry, place: str) -> tuple[str, ...]:
        return place, *(entry[name] for name in ("section", "column", "metric", "bits", "recipe"))


class Plot(NamedTuple):
    """Pictures of one kind, of which the reader chooses; without any, ``empty`` says why."""

    name: str
    title: str
    text: str
    empty: str
    choices: list[Choice]


class Line(NamedTuple):
    """The values of a cell's seeds, and its sheet."""

    name: str
    values: list[float]
    sheet: str = ""


BLOCKS = Plot(  # the script makes its choices from the runs that the page describes
    "blocks",
    "Error of each block of a run",
    "Between the block's output and that of the full-precision network: of round-to-nearest, and after learning with "
    "weights still soft, then hard. A method without soft weights has one line less.",
    "Runs that were computed here have errors of their blocks; what is published has values alone.",
    [],
)


def of_bits(standings: Iterable[Standing], plan: Plan, sheets: Sheets) -> Plot:
    """Return values against bits, of each column of a table in which a method has several."""
    choices = [
        choice
        for standing in standings
        for label, entries in _by_column(standing)
        if (choice := _against_bits(label, entries, plan, functools.partial(sheets.of, place=standing.table.place)))
    ]
    text = (
        f"A line for each method, bars of {Z} standard errors on the test set, dotted: full precision. What lies far "
        "off is outside the picture: a double click shows it. A click on a point opens its cell, one on a name hides "
        "its line."
    )
    return Plot("bits", "Accuracy against bits", text, "No table has a method at several bits with values.", choices)


def sizes(plan: Plan, root: Path) -> dict[tuple[str, int], list[float]]:
    """Return the values of all seeds of each method and calibration size that are there.

    Raises:
        InputError: an evaluated run that can't be used.
    """
    spec, figures = plan.params.figures.sample_size, plan.scale.figures
    known = (plan.scale.name, figures.sample_sizes, figures.sample_size_seeds, root / "results")
    found = {}
    for cell in sample_sizes.collect(spec, [], *known)[0]:
        method, _, size = cell.key.method.rpartition(", ")
        found[method, int(size.split()[0])] = [trial.value for trial in cell.trials]
    return {key: values for key, values in found.items() if values}


def of_sizes(plan: Plan, found: Mapping[tuple[str, int], list[float]]) -> Plot:
    """Return accuracy against calibration size: of what :func:`sizes` found, and the paper's."""
    spec = plan.params.figures.sample_size
    ours = [
        Point(size, method, statistics.mean(values), statistics.stdev(values) if len(values) > 1 else 0.0)
        for (method, size), values in found.items()
    ]
    theirs = load_figure7() if plan.scale.shows.published else []
    named = (("computed here", ours), ("the paper's", theirs))
    choices = [_against_size(label, points) for label, points in named if len({point.size for point in points}) > 1]
    text = f"{spec.checkpoint}, weights at 4 bit: mean and standard deviation over seeds."
    empty = f"No other calibration size was computed: make results/figure{spec.number}.pdf."
    return Plot("sizes", "Accuracy against calibration size", text, empty, choices)


def of_seeds(
    standings: Iterable[Standing], found: Mapping[tuple[str, int], list[float]], root: Path, sheets: Sheets
) -> Plot:
    """Return how far each seed is from the median of its cell; of tables, and of calibration sizes.

    Raises:
        InputError: an evaluated run that can't be used.
    """
    lines: dict[str, list[Line]] = {}
    for standing in standings:
        for entry in standing.layout.entries if standing.layout else []:
            if values := _seeds(entry, standing, root):
                line = Line(place_of(entry, entry["method"]), values, sheets.of(entry, standing.table.place))
                lines.setdefault(standing.table.title, []).append(line)
    of_sizes = [Line(f"{method}<br>{size} samples", own) for (method, size), own in found.items() if len(own) > 1]
    if of_sizes:
        lines["calibration sizes"] = of_sizes
    text = "Each point is a seed: its value less the median of its cell. A click on it opens the cell."
    empty = "Every cell has one seed, or its seeds were not computed here: --config seeds=3 makes three."
    return Plot("seeds", "Spread over seeds", text, empty, [_over_seeds(*each) for each in lines.items()])


def _by_column(standing: Standing) -> Iterator[tuple[str, list[Entry]]]:
    """Yield the entries with values of each section, column and metric of a table, with a name for them."""
    entries = standing.layout.entries if standing.layout else []
    shown = [entry for entry in entries if entry["value"] and entry["metric"] != SETTING]
    groups: dict[tuple[str, ...], list[Entry]] = {}
    for entry in shown:
        groups.setdefault((entry["section"], entry["column"], entry["metric"]), []).append(entry)
    for (section, column, metric), group in groups.items():
        yield ", ".join(filter(None, (standing.table.title, section, column, words.of(metric)))), group


def _against_bits(label: str, entries: list[Entry], plan: Plan, sheet: Callable[[Entry], str]) -> Choice | None:
    """Return the values of one column against bits; None where no method has two."""
    quantized = [entry for entry in entries if not whole(plan, entry["recipe"])]
    by_method: dict[str, dict[str, Entry]] = {}
    for entry in quantized:
        by_method.setdefault(entry["method"], {})[entry["bits"]] = entry
    lines = {method: of for method, of in by_method.items() if len(of) > 1}
    if not lines:
        return None
    bits = sorted(
        {width for of in lines.values() for width in of}, key=lambda width: [int(w) for w in width.split("/")]
    )
    traces: list[dict[str, Any]] = [
        {
            "name": method,
            "look": index,
            "mode": "lines+markers",
            "x": [
                round(place + STAGGER * (index - len(lines) / 2), 3) for place, width in enumerate(bits) if width in of
            ],
            "y": [float(of[width]["value"]) for width in bits if width in of],
            "error_y": {"array": [round(Z * float(of[w]["stderr"] or 0), DECIMALS) for w in bits if w in of]},
            "text": [f"{method}, {width}: {of[width]['value']}" for width in bits if width in of],
            "customdata": [sheet(of[width]) for width in bits if width in of],
        }
        for index, (method, of) in enumerate(lines.items())
    ]
    best = [float(entry["value"]) for entry in entries if entry not in quantized]
    axis: dict[str, Any] = {"title": {"text": words.of(entries[0]["metric"])}}
    if best:
        axis |= _near(best[0], [value for trace in traces for value in trace["y"]])
    ends = {"x": [0, len(bits) - 1], "y": [best[0]] * 2} if best else {}
    if best:
        text = [f"full precision: {best[0]:.{DECIMALS}f}"] * 2
        traces.append({"name": "full precision", "look": 7, "mode": "lines", "dash": "dot", "text": text, **ends})
    columns = {"tickvals": list(range(len(bits))), "ticktext": bits, "title": {"text": "bits, weights/activations"}}
    rows = [[method, *(of[width]["value"] if width in of else "" for width in bits)] for method, of in lines.items()]
    opened = [["", *(sheet(of[width]) if width in of else "" for width in bits)] for of in lines.values()]
    return Choice(label, traces, {"xaxis": columns, "yaxis": axis}, [["method", *bits], *rows], opened)


def _near(best: float, values: list[float]) -> dict[str, Any]:
    """Return the range of an axis that leaves out what is far from full precision, if something is."""
    distances = [abs(value - best) for value in values]
    reach = max(FAR * statistics.median(distances), LEAST * best)
    if max(distances) <= 2 * reach:
        return {}
    low, high = min(*values, best), max(*values, best)
    margin = 0.1 * reach
    ends = max(low, best - reach) - margin, min(high, best + reach) + margin
    return {"range": [round(end, DECIMALS) for end in ends]}


def whole(plan: Plan, recipe: str) -> bool:
    """Whether a recipe quantizes nothing."""
    known = plan.params.recipes.recipes.get(recipe)
    return known is not None and not known.quantized


def _against_size(label: str, points: Sequence[Point]) -> Choice:
    """Return values with spreads against sizes, a line for each method."""
    methods = list(dict.fromkeys(point.method for point in points))
    sizes = sorted({point.size for point in points})
    traces, columns = [], []
    for look, method in enumerate(methods):
        own = sorted(point for point in points if point.method == method)
        said = {
            point.size: f"{number(point.value)}" + (f" ± {number(point.spread)}" if point.spread else "")
            for point in own
        }
        traces.append(
            {
                "name": method,
                "look": look,
                "mode": "lines+markers",
                "x": [point.size for point in own],
                "y": [round(point.value, DECIMALS) for point in own],
                "error_y": {"array": [round(point.spread, DECIMALS) for point in own]},
                "text": [f"{method}, {size} samples: {value}" for size, value in said.items()],
            }
        )
        columns.append([said.get(size, "") for size in sizes])
    axis = {"type": "log", "tickvals": sizes, "title": {"text": "calibration samples"}}
    rows = [[str(size), *values] for size, *values in zip(sizes, *columns, strict=True)]
    layout = {"xaxis": axis, "yaxis": {"title": {"text": "top-1"}}}
    return Choice(label, traces, layout, [["samples", *methods], *rows])


def _seeds(entry: Entry, standing: Standing, root: Path) -> list[float]:
    """Return the values of the seeds of a cell that has several, as far as they are there."""
    if int(entry["n_seeds"] or 0) < 2:
        return []
    names = {shown: metric for metric, shown in standing.table.metric_names.items()}
    metric = names.get(entry["metric"], entry["metric"])
    return [read_run(run, root / "results", [metric])[metric].value for run in origins.evaluated(entry, root)]


def _over_seeds(label: str, lines: list[Line]) -> Choice:
    """Return the seeds of each cell around its median."""
    spots = [
        (
            round(value - statistics.median(line.values), DECIMALS),
            index,
            f"{line.name.replace('<br>', ', ')}: {value:.{DECIMALS}f}",
            line.sheet,
        )
        for index, line in enumerate(lines)
        for value in line.values
    ]
    x, y, text, sheets = (list(column) for column in zip(*spots, strict=True))
    axis = {"title": {"text": "seed less median"}}
    layout = {"height": 110 + LINE * len(lines), "xaxis": axis, "yaxis": named_lines([line.name for line in lines])}
    rows = [
        [line.name.replace("<br>", ", "), number(statistics.median(line.values)), *map(number, line.values)]
        for line in lines
    ]
    trace = {"name": "seeds", "look": 0, "mode": "markers", "x": x, "y": y, "text": text, "customdata": sheets}
    header = ["cell", "median", *(f"seed {i}" for i in range(len(lines[0].values)))]
    return Choice(label, [trace], layout, [header, *rows], [[line.sheet] for line in lines])


def place_of(entry: Entry, method: str) -> str:
    """Return where a value stands, on two lines."""
    metric = words.of(entry["metric"])
    return f"{entry['column']} {metric}<br>{' '.join(filter(None, (entry['section'], method, entry['bits'])))}"


def named_lines(names: list[str]) -> dict[str, Any]:
    """Return a vertical axis with a name for each line, the first one on top."""
    return {"tickvals": list(range(len(names))), "ticktext": names, "range": [len(names) - 0.4, -0.6]}
