"""A table as one self-contained HTML page: ours, the paper's value beside it, and the rest on hover."""

from flexround.results.grid import Entry, TableGrid
from flexround.results.render import jinja, words
from flexround.settings.schema import ScaleFacts
from flexround.settings.tables import Table


def render(grid: TableGrid, table: Table, scale: ScaleFacts) -> str:
    """Return a table as an HTML page."""
    page = jinja.HTML.get_template("table.html")
    return page.render(scale=scale, grid=grid, table=table, hover=hover, sheets=None)


def hover(entry: Entry) -> str:
    """Return a cell's status, uncertainty, significance and runs in one line."""
    return "; ".join([told(entry), "/".join(filter(None, (entry.task, entry.checkpoint, entry.recipe)))])


def told(entry: Entry) -> str:
    """Return a cell's status, uncertainty and significance in one line."""
    parts = [entry.status]
    if entry.n_examples:
        several = int(entry.n_seeds or 0) > 1
        parts.append(f"median of {entry.n_seeds} seeds, spread {entry.spread}" if several else "one seed")
        parts.append(f"standard error {entry.stderr or 'unknown'} on {entry.n_examples} examples")
    if entry.rival:
        p = words.probability(entry.p_value) or "unknown"
        parts.append(f"against {entry.rival}: {entry.lead} ± {entry.lead_stderr or 'unknown'}, p {p}")
    return "; ".join(parts)
