"""A table's CSV as one self-contained HTML page: ours, the paper's value beside it, and the rest on hover."""

import hashlib

import jinja2

from flexround.settings.schema import Scale, Table
from flexround.tables.grid import Entry, legend, parse, plain, scale_note

PAGE = """<!DOCTYPE html>
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
thead th { text-align: center; }
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
difference{% endif %}; spread over seeds and standard error on hover. {{ legend }}</p>
</caption>
<thead>
<tr>
{% for name in texts %}
<th class="text" rowspan="2" scope="col">{{ name }}</th>
{% endfor %}
{% for name, metrics in grid.columns %}
<th colspan="{{ metrics | length }}" scope="colgroup">{{ name }}</th>
{% endfor %}
</tr>
<tr>
{% for _, metrics in grid.columns %}
{% for metric in metrics %}
<th scope="col">{{ metric }}</th>
{% endfor %}
{% endfor %}
</tr>
</thead>
{% for lines in grid.lines | groupby("group") %}
<tbody>
{% for line in lines.list %}
<tr>
{% for name in texts %}
<th class="text" scope="row">{{ line[name | lower] }}</th>
{% endfor %}
{% for entry in line.cells | sum(start=()) %}
<td class="{{ entry.status }}" title="{{ hover(entry) }}">
{%- if entry.best == "1" %}<b>{{ entry.value }}</b>{% else %}{{ entry.value or "\u2014" }}{% endif %}
{%- if entry.status == "partial" %}\u2020{% endif %} <span class="paper">({{ entry.published }})</span>
{%- if entry.delta %} <span class="delta">{{ "%+.2f" | format(entry.delta | float) }}</span>{% endif %}</td>
{% endfor %}
</tr>
{% endfor %}
</tbody>
{% endfor %}
</table>
<footer><p>From table{{ grid.number }}.csv, sha256 {{ sha256 }}.</p></footer>
</body>
</html>
"""
_ENVIRONMENT = jinja2.Environment(
    autoescape=True, trim_blocks=True, keep_trailing_newline=True, undefined=jinja2.StrictUndefined
)


def render(text: str, table: Table, scale: Scale) -> str:
    """Return the table as an HTML page.

    Args:
        text: the table's CSV.
        table: its caption.
        scale: named in the caption.
    """
    grid = parse(text)
    optional = [name for name in ("Section", "Bits") if any(getattr(line, name.lower()) for line in grid.lines)]
    return _ENVIRONMENT.from_string(PAGE).render(
        grid=grid,
        caption=plain(table.caption),
        note=scale_note(scale),
        legend=legend(grid, best="Bold", partial="\u2020", missing="\u2014"),
        deltas=any(entry["delta"] for entry in grid.entries),
        texts=["Method", *optional],
        hover=hover,
        sha256=hashlib.sha256(text.encode()).hexdigest(),
    )


def hover(entry: Entry) -> str:
    """Return a cell's status, uncertainty and runs in one line."""
    parts = [entry["status"]]
    if entry["value"]:
        seeds = int(entry["n_seeds"])
        parts.append(f"median of {seeds} seeds, spread {entry['spread']}" if seeds > 1 else "one seed")
        parts.append(f"standard error {entry['stderr'] or 'unknown'} on {entry['n_examples']} examples")
    parts.append(f"{entry['task']}/{entry['checkpoint']}/{entry['recipe']}")
    return "; ".join(parts)
