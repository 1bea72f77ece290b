"""A table's CSV as one self-contained HTML page: ours, the paper's value beside it, and the rest on hover."""

import hashlib

from flexround.results.render import jinja, words
from flexround.results.render.table_layout import Entry, Layout, absent, legend, optional, parse, plain, scale_note
from flexround.settings.schema import ScaleFacts
from flexround.settings.tables import Table


def render(text: str, table: Table, scale: ScaleFacts) -> str:
    """Return the CSV of a table as an HTML page."""
    layout = parse(text)
    return jinja.HTML.get_template("table.html").render(
        scale=scale,
        layout=layout,
        caption=plain(table.caption),
        note=scale_note(scale),
        legend=legend(layout, best="Bold", partial="†", missing="—"),
        deltas=any(entry["delta"] for entry in layout.entries),
        texts=texts(layout, table),
        hover=hover,
        absent=absent,
        table=table,
        plain=plain,
        words=words.of,
        sha256=hashlib.sha256(text.encode()).hexdigest(),
    )


def texts(layout: Layout, table: Table) -> list[tuple[str, str]]:
    """Return what stands left of the numbers, each with its header."""
    names = optional(layout)
    if table.descriptive:
        names.insert(table.method_at, "method")
    return [(name, table.descriptive[table.method_at] if name == "method" else name.capitalize()) for name in names]


def hover(entry: Entry) -> str:
    """Return a cell's status, uncertainty, significance and runs in one line."""
    parts = [entry["status"]]
    if entry["n_examples"]:
        seeds = int(entry["n_seeds"])
        parts.append(f"median of {seeds} seeds, spread {entry['spread']}" if seeds > 1 else "one seed")
        parts.append(f"standard error {entry['stderr'] or 'unknown'} on {entry['n_examples']} examples")
    if entry["rival"]:
        lead = f"{entry['lead']} ± {entry['lead_stderr'] or 'unknown'}"
        p = "p < 0.0001" if entry["p_value"] == "0.0000" else f"p = {entry['p_value'] or 'unknown'}"
        parts.append(f"against {entry['rival']}: {lead}, {p}")
    parts.append("/".join(filter(None, (entry["task"], entry["checkpoint"], entry["recipe"]))))
    return "; ".join(parts)
