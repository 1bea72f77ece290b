"""A table as a page of the documentation, in Markdown: the paper's numbers, ours as published, the claims on it."""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path

from flexround.io import artifacts
from flexround.results import published_results
from flexround.results.claims.verdicts import VERDICTS
from flexround.results.paper_numbers import Key
from flexround.results.render import html, report_claims, words
from flexround.results.render.overview import family
from flexround.results.render.table_layout import Entry, Layout, absent, legend, parse, plain, scale_note
from flexround.settings.layout import PARAMS
from flexround.settings.params import Params
from flexround.settings.schema import Scale
from flexround.settings.tables import Table

HEADERS = {"published_margin": "paper's margin", "margin": "our margin"}  # of columns of claims.csv
TEXTS = ("verdict", "section", "column", "bits", "metric", "one", "other")
COLUMNS = (*TEXTS, "published_margin", "margin", "noise")


def page(number: int, scales: Sequence[Params], bold: Collection[Key], root: Path) -> str:
    """Return the page of a table.

    Args:
        number: of the table.
        scales: all whose tables are of one series, with or without published results.
        bold: what the paper prints in bold.
        root: of the project, with ``results/reference``.

    Raises:
        InputError: published results of another version.
    """
    table = scales[0].tables[number]
    paths = [published_results.find_published(root, params.scale, f"{table.name}.csv") for params in scales]
    layouts = [parse(artifacts.read_text(path)) if path else None for path in paths]
    parts = [f"# {table.title} ({family(table)})", escape(plain(table.caption).strip())]
    if (first := next(filter(None, layouts), None)) and any(entry["published"] for entry in first.entries):
        parts += ["## In the paper", _paper(first, table, bold)]
        parts += [f"({letter}) {escape(plain(note.text).strip())}" for letter, note in table.notes]
    for params, layout in zip(scales, layouts, strict=True):
        parts += [f"## Scale {params.scale.name}", *_ours(layout, table, params.scale)]
        parts += _claims(table, params.scale, root) if layout else []
    return "\n\n".join(parts) + "\n"


def command(table: Table, scale: Scale) -> str:
    """Return what makes a table at a scale."""
    known = scale.name in ("mini", table.series)  # by the Makefile
    return f"make results/{table.name}.csv" + ("" if known else f" SCALE={scale.name}")


def escape(text: str) -> str:
    """Return plain text in which nothing is a mark of Markdown."""
    return re.sub(r"([\\`*_\[\]<>|$#])", r"\\\1", " ".join(text.split()))


def _paper(layout: Layout, table: Table, bold: Collection[Key]) -> str:
    """Return the published numbers, with the letters of their errata."""

    def shown(entry: Entry) -> str:
        key = Key(int(entry["table"]), int(entry["row"]), *(entry[name] for name in Key._fields[2:]))
        mark = table.mark(key.row, key.column)
        return _strong(entry["published"] or "—", key in bold) + (f" ({mark})" if mark else "")

    return _rows(layout, table, shown)


def _ours(layout: Layout | None, table: Table, scale: Scale) -> list[str]:
    """Return our numbers with the words that belong to them, and what makes them."""
    made = f"    {command(table, scale)}"
    if layout is None:
        return ["No results of this scale are published here. This makes the table:", made]

    def shown(entry: Entry) -> str:
        return _strong(entry["value"] or absent(entry, "—"), entry["best"] == "1")

    notes = [escape(scale_note(scale)), legend(layout, best="Bold", partial="†", missing="—")]
    return [" ".join(filter(None, notes)), _rows(layout, table, shown), "This makes the table:", made]


def _rows(layout: Layout, table: Table, shown: Callable[[Entry], str]) -> str:
    """Return a layout as rows; a cell's metrics stand side by side as in the paper: a / b."""
    texts = html.texts(layout, table)
    names = [" ".join([column.name, " / ".join(map(words.of, column.metrics))]).strip() for column in layout.columns]
    rows = []
    for line in layout.lines:
        marked = f" ({mark})" if (mark := table.mark(line.row)) else ""
        shown_as = {"metrics": words.of(line.metrics)}
        left = [
            escape(shown_as.get(name, getattr(line, name))) + (marked if name == "method" else "") for name, _ in texts
        ]
        cells = [" / ".join(map(shown, cell)) for cell, _ in layout.cells(line)]
        rows.append([*left, *cells, *[""] * (len(names) - len(cells))])
    return _markdown([escape(header) for header in (*(text for _, text in texts), *names)], rows, len(texts))


def _claims(table: Table, scale: Scale, root: Path) -> list[str]:
    """Return what the paper claims of a table, how our published results judge it, and each comparison."""
    path = published_results.find_published(root, scale, "claims.csv")
    judged = report_claims.read(path, PARAMS / scale.shows.claims) if path else []
    parts = []
    for claim in judged:
        lines = [dict(zip(claim.header, line, strict=True)) for line in claim.lines]
        if lines := [line for line in lines if line["place"] == table.place]:
            counts = Counter(line["verdict"] for line in lines)
            found = ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS if counts[verdict])
            parts.append(f"* {escape(claim.text.rstrip('.'))} ({escape(claim.where)}): **{found}**.")
            parts.append(_folded(lines))
    return [f"### What the paper says of it, at the scale {scale.name}", *parts] if parts else []


def _folded(lines: Sequence[dict[str, str]]) -> str:
    """Return the comparisons of a claim as a table that opens when it is asked for."""
    columns = [column for column in COLUMNS if any(line.get(column) for line in lines)]
    rows = [[escape(line.get(column, "")) for column in columns] for line in lines]
    left = sum(column in TEXTS for column in columns)
    inside = _markdown([HEADERS.get(column, column) for column in columns], rows, left)
    return f"<details><summary>{len(lines)} comparisons</summary>\n\n{inside}\n\n</details>"


def _strong(text: str, strong: bool) -> str:
    """Return text that may be bold."""
    return f"**{text}**" if strong else text


def _markdown(header: Sequence[str], rows: Iterable[Sequence[str]], left: int) -> str:
    """Return a table whose first ``left`` columns are text, the others numbers."""
    under = [":--"] * left + ["--:"] * (len(header) - left)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (header, under, *rows))
