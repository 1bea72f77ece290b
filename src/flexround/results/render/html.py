"""A table's CSV as one self-contained HTML page: ours, the paper's value beside it, and the rest on hover."""

import hashlib

from flexround.results.render import jinja
from flexround.results.render.table_layout import Entry, Grid, legend, optional, parse, plain, scale_note
from flexround.settings.schema import ScaleFacts
from flexround.settings.tables import Table

PAGE = """{% macro raised(letter) %}{% if letter %}<sup>{{ letter }}</sup>{% endif %}{% endmacro %}
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>Table {{ grid.number }}, scale {{ grid.scale }}</title>
<style>
body { font: 15px/1.45 system-ui, sans-serif; color: #222; margin: 2rem auto; max-width: 75rem; padding: 0 1rem; }
table { border-collapse: collapse; border-top: 2px solid; border-bottom: 2px solid; }
caption { caption-side: top; text-align: left; max-width: 60rem; padding-bottom: .8rem; }
th, td { padding: .25rem .7rem; text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
th { font-weight: 600; }
thead th, td[colspan] { text-align: center; }
th.text, td.text { text-align: left; font-weight: 400; }
tbody { border-top: 1px solid; }
tbody tr:hover { background: #f2f5f8; }
.paper, footer { color: #666; font-size: .85em; }
.off .delta { color: #a33; }
.scale { font-weight: 600; }
</style>
</head>
<body>
<table>
<caption>
<p><b>Table {{ grid.number }}.</b> {{ caption }}</p>
<p><span class="scale">{{ note }}</span> Each cell: ours <span class="paper">(paper)</span>{% if deltas %}, then the
difference{% endif %}; the rest on hover. {{ legend }}</p>
</caption>
<thead>
<tr>
{% for _, header in texts %}
<th class="text" rowspan="2" scope="col">{{ header }}</th>
{% endfor %}
{% for column in grid.columns %}
<th colspan="{{ column.width }}" scope="colgroup">{{ column.name }}</th>
{% endfor %}
</tr>
<tr>
{% for metric in grid.columns | sum(attribute="metrics", start=()) %}
<th scope="col">{{ metric }}</th>
{% endfor %}
</tr>
</thead>
{% for lines in grid.lines | groupby("group") %}
<tbody>
{% for line in lines.list %}
<tr>
{% for name, _ in texts %}
<th class="text" scope="row">{{ line[name] }}{% if name == "method" %}{{ raised(table.mark(line.row)) }}{% endif %}</th>
{% endfor %}
{% for cell, width in grid.cells(line) %}
{% for entry in cell %}
<td class="{{ entry.status }}" title="{{ hover(entry) }}"
{%- if loop.last and width > 1 %} colspan="{{ width }}"{% endif %}>
{%- if entry.best == "1" %}<b>{{ entry.value }}</b>{% else %}{{ entry.value or "\u2014" }}{% endif %}
{%- if entry.status == "partial" %}\u2020{% endif %}
{%- if entry.published %} <span class="paper">({{ entry.published }})
{{- raised(table.mark(line.row, entry.column)) }}</span>{% endif %}
{%- if entry.delta %} <span class="delta">{{ "%+.2f" | format(entry.delta | float) }}</span>{% endif %}</td>
{% endfor %}
{% endfor %}
</tr>
{% endfor %}
</tbody>
{% endfor %}
</table>
<footer>
{% for letter, erratum in table.notes %}
<p>{{ raised(letter) }} {{ plain(erratum.text) }}</p>
{% endfor %}
<p>From table{{ grid.number }}.csv, sha256 {{ sha256 }}.</p></footer>
</body>
</html>
"""
_ENVIRONMENT = jinja.html()


def render(text: str, table: Table, scale: ScaleFacts) -> str:
    """Return the table as an HTML page.

    Args:
        text: the table's CSV.
        table: its caption and errata.
        scale: named in the caption.
    """
    grid = parse(text)
    return _ENVIRONMENT.from_string(PAGE).render(
        grid=grid,
        caption=plain(table.caption),
        note=scale_note(scale),
        legend=legend(grid, best="Bold", partial="\u2020", missing="\u2014"),
        deltas=any(entry["delta"] for entry in grid.entries),
        texts=texts(grid, table),
        hover=hover,
        table=table,
        plain=plain,
        sha256=hashlib.sha256(text.encode()).hexdigest(),
    )


def texts(grid: Grid, table: Table) -> list[tuple[str, str]]:
    """Return what stands left of the numbers, each with its header."""
    names = optional(grid)
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
        lead = f"{entry['lead']} \u00b1 {entry['lead_stderr'] or 'unknown'}"
        p = "p < 0.0001" if entry["p_value"] == "0.0000" else f"p = {entry['p_value'] or 'unknown'}"
        parts.append(f"against {entry['rival']}: {lead}, {p}")
    parts.append("/".join(filter(None, (entry["task"], entry["checkpoint"], entry["recipe"]))))
    return "; ".join(parts)
