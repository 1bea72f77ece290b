"""A table as a page of the documentation, in Markdown: the paper's numbers, ours as published, the claims on it."""

from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from flexround.results import grid, published_results
from flexround.results.claims import verdicts
from flexround.results.claims.verdicts import JudgedClaim
from flexround.results.grid import Entry, TableGrid
from flexround.results.paper_numbers import Key
from flexround.results.render import claims_page, markdown, words
from flexround.results.render.markdown import escape, strong
from flexround.results.render.overview import family
from flexround.results.render.words import absent, labels, legend, plain, scale_note
from flexround.settings.params import Params
from flexround.settings.schema import Scale
from flexround.settings.tables import Table

LEFT = 4  # columns of text of a comparison


def page(number: int, scales: Sequence[Params], bold: Collection[Key], root: Path) -> str:
    """Return the page of a table at some scales of one series, with what the project in ``root`` has published."""
    table = scales[0].tables[number]
    paths = [published_results.find_published(root, params.scale, f"{table.name}.csv") for params in scales]
    grids = [grid.load(path) if path else None for path in paths]
    parts = [f"# {table.title} ({family(table)})", escape(plain(table.caption).strip())]
    if (first := next(filter(None, grids), None)) and any(entry.published for entry in first.entries):
        parts += ["## In the paper", _paper(first, table, bold)]
        parts += [f"({letter}) {escape(plain(note.text).strip())}" for letter, note in table.notes]
    for params, of_scale in zip(scales, grids, strict=True):
        parts += [f"## Scale {params.scale.name}", *_ours(of_scale, table, params.scale)]
        parts += [escape(line)] if (line := published_results.made(root, params.scale).get(table.name)) else []
        parts += _claims(table, params.scale, root) if of_scale else []
    return "\n\n".join(parts) + "\n"


def _paper(grid: TableGrid, table: Table, bold: Collection[Key]) -> str:
    """Return the published numbers, with the letters of their errata."""

    def shown(entry: Entry) -> str:
        mark = table.mark(entry.row, entry.column)
        return strong(entry.published or "—", entry.key in bold) + (f" ({mark})" if mark else "")

    return _rows(grid, table, shown)


def _ours(grid: TableGrid | None, table: Table, scale: Scale) -> list[str]:
    """Return our numbers with the words that belong to them, and what makes them."""
    known = scale.name in ("mini", table.series)  # by the Makefile
    made = f"    make results/{table.name}.csv" + ("" if known else f" SCALE={scale.name}")
    if grid is None:
        return ["No results of this scale are published here. This makes the table:", made]

    def shown(entry: Entry) -> str:
        return strong(entry.value or absent(entry, "—"), bool(entry.best)) + ("†" if entry.status == "partial" else "")

    notes = [escape(scale_note(scale)), legend(grid)]
    return [" ".join(filter(None, notes)), _rows(grid, table, shown), "This makes the table:", made]


def _rows(grid: TableGrid, table: Table, shown: Callable[[Entry], str]) -> str:
    """Return a table as rows; a cell's metrics stand side by side as in the paper: a / b."""
    texts = labels(grid, table)
    names = [" ".join([column.name, " / ".join(map(words.of, column.metrics))]).strip() for column in grid.columns]
    rows = []
    for line in grid.rows:
        marked = f" ({mark})" if (mark := table.mark(line.row)) else ""
        shown_as = {"metrics": words.of(line.metrics)}
        left = [
            escape(shown_as.get(name, getattr(line, name))) + (marked if name == "method" else "") for name, _ in texts
        ]
        cells = [" / ".join(map(shown, cell)) for cell in line.cells]
        rows.append([*left, *cells, *[""] * (len(names) - len(cells))])
    return markdown.table([escape(header) for header in (*(text for _, text in texts), *names)], rows, len(texts))


def _claims(table: Table, scale: Scale, root: Path) -> list[str]:
    """Return what the paper claims of a table, how our published results judge it, and each comparison."""
    path = published_results.find_published(root, scale, "claims.csv")
    if path is None:
        return []
    parts = []
    for claim in verdicts.load(path, scale):
        of_table = claim._replace(lines=[line for line in claim.lines if line.place == table.place])
        if of_table.lines:
            found = ", ".join(f"{count} {verdict}" for verdict, count in of_table.counts.items() if count)
            parts.append(f"* {escape(claim.claim.text.rstrip('.'))} ({escape(claim.claim.where)}): **{found}**.")
            parts.append(_folded(of_table))
    return [f"### What the paper says of it, at the scale {scale.name}", *parts] if parts else []


def _folded(claim: JudgedClaim) -> str:
    """Return the comparisons of a claim as a table that opens when it is asked for."""
    rows = [[escape(str(text)) for text in row] for row in claims_page.comparisons(claim)]
    inside = markdown.table(claims_page.COMPARISONS, rows, LEFT)
    return f"<details><summary>{len(claim.lines)} comparisons</summary>\n\n{inside}\n\n</details>"
