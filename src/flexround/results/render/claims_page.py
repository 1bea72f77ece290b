"""The claims and the errata as one self-contained HTML page, made from their CSVs."""

import csv
import hashlib
from collections import Counter
from collections.abc import Mapping
from typing import Any

from flexround import metrics
from flexround.results.claims.specs import Claim
from flexround.results.claims.verdicts import FAILS, HOLDS, VERDICTS
from flexround.results.contests import Z
from flexround.results.render import jinja
from flexround.results.render.table_layout import Entry, scale_note
from flexround.settings.schema import ScaleFacts

PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>Claims of the paper, scale {{ scale.name }}</title>
<style>
body { font: 15px/1.45 system-ui, sans-serif; color: #222; margin: 2rem auto; max-width: 75rem; padding: 0 1rem; }
h1 { font-size: 1.3rem; }
h2 { font-size: 1.1rem; margin-top: 2rem; }
p { max-width: 60rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; border-top: 2px solid; border-bottom: 2px solid; }
th, td { padding: .25rem .7rem; text-align: right; vertical-align: top; white-space: nowrap; }
th, td { font-variant-numeric: tabular-nums; }
th { font-weight: 600; }
.text { text-align: left; font-weight: 400; white-space: normal; }
.short { text-align: left; }
thead th.text { font-weight: 600; }
tbody { border-top: 1px solid; }
tbody tr:hover { background: #f2f5f8; }
details { margin: .6rem 0; }
summary { cursor: pointer; }
.where, footer { color: #666; font-size: .85em; }
.holds { color: #17692f; }
.fails { color: #a33; }
.none { color: #999; }
</style>
</head>
<body>
<h1>Claims of the paper</h1>
<p><b>{{ note }}</b> A margin is positive where the first row is better: points, for a perplexity percent of the second
row's. A claim <b class="holds">holds</b>, or <b class="fails">does not hold</b>, in a cell where the margin is further
from what the claim says than the noise: {{ z }} standard errors of the paired difference on the test set, or the spread
over seeds if that is more; without a bound, the paired test must agree at 5 %. Where nothing differs
chance alone still gives about one verdict in twenty. <i>Not run</i>: a row or a seed is
missing. The paper's column says in how many cells its own numbers are what it
claims, copied rows (see the errata) aside.</p>
<div class="wide">
<table>
<thead>
<tr><th class="text">Claim</th><th>Paper</th>
{% for verdict in verdicts %}<th>{{ verdict | capitalize }}</th>{% endfor %}
</tr>
</thead>
<tbody>
{% for claim in claims %}
<tr>
<td class="text"><a href="#{{ claim.name }}">{{ claim.text }}</a>
<span class="where">{{ claim.where }}; {{ claim.places }}</span></td>
<td>{{ claim.supported }} of {{ claim.published }}</td>
{% for verdict, count in claim.counts %}
<td{% if count %} class="{{ style.get(verdict, "") }}"{% else %} class="none"{% endif %}>{{ count }}</td>
{% endfor %}
</tr>
{% endfor %}
</tbody>
</table>
</div>
<h2>Each comparison</h2>
{% for claim in claims %}
<details>
<summary>{{ claim.text }} <span class="where">{{ claim.where }}; {{ claim.places }}</span></summary>
<div class="wide" id="{{ claim.name }}">
<table>
<thead>
<tr>
{% for header in ("Place", "Cell", "Rows", "Claim") %}<th class="text">{{ header }}</th>{% endfor %}
{% for header in ("Paper", "Ours", "Noise", "p") %}<th>{{ header }}</th>{% endfor %}<th class="text">Verdict</th>
</tr>
</thead>
<tbody>
{% for entry in claim.entries %}
<tr>
<td class="short">{{ entry.place | capitalize }}</td>
<td class="text">{{ place(entry) }}</td>
<td class="text">{{ entry.one.split(" [")[0] }} / {{ entry.other.split(" [")[0] }}</td>
<td class="text">{{ entry.criterion }}</td>
<td class="{{ style.get(entry.published, "") }}">{{ signed(entry.published_margin, entry.metric) }}</td>
<td>{{ signed(entry.margin, entry.metric) }}</td>
<td>{{ entry.noise or ("\u2014" if entry.verdict == "not run" else "unknown") }}</td>
<td>{{ entry.p_value or "\u2014" }}</td>
<td class="short {{ style.get(entry.verdict, "") }}">{{ entry.verdict }}</td>
</tr>
{% endfor %}
</tbody>
</table>
</div>
</details>
{% endfor %}
<h2 id="errata">Errata: where the paper contradicts itself</h2>
<p>Found by comparing its numbers with each other, with its bold marks and with its words. Nothing published is
altered.</p>
<div class="wide">
<table>
<thead>
<tr>{% for header in ("Kind", "Place", "Row", "Cell") %}<th class="text">{{ header }}</th>{% endfor %}
<th>Printed</th><th class="text">What is wrong</th></tr>
</thead>
<tbody>
{% for entry in errata %}
<tr>
<td class="short">{{ entry.kind }}</td>
<td class="short">Table {{ entry.table }}, row {{ entry.row }}</td>
<td class="text">{{ entry.method }}</td>
<td class="text">{{ place(entry) }}</td>
<td>{{ entry.value }}</td>
<td class="text">{{ entry.text }}</td>
</tr>
{% endfor %}
</tbody>
</table>
</div>
<footer><p>From claims.csv, sha256 {{ sha256[0] }}, and errata.csv, sha256 {{ sha256[1] }}.</p></footer>
</body>
</html>
"""
STYLE = {HOLDS: "holds", FAILS: "fails"}  # class of a verdict
_ENVIRONMENT = jinja.html()


def render(claims_csv: str, errata_csv: str, claims: Mapping[str, Claim], scale: ScaleFacts) -> str:
    """Return the page.

    Args:
        claims_csv: of ``claims.to_csv``.
        errata_csv: of ``errata.to_csv``.
        claims: by name; their texts.
        scale: named at the top.
    """
    entries = list(csv.DictReader(claims_csv.splitlines()))
    return _ENVIRONMENT.from_string(PAGE).render(
        scale=scale,
        note=scale_note(scale),
        z=Z,
        verdicts=VERDICTS,
        style=STYLE,
        claims=[_summary(name, claim, entries) for name, claim in claims.items()],
        errata=list(csv.DictReader(errata_csv.splitlines())),
        place=_place,
        signed=_signed,
        sha256=[hashlib.sha256(text.encode()).hexdigest() for text in (claims_csv, errata_csv)],
    )


def _summary(name: str, claim: Claim, entries: list[Entry]) -> dict[str, Any]:
    """Return a claim's text, its comparisons, and in how many of them it holds."""
    mine = [entry for entry in entries if entry["claim"] == name]
    verdicts = Counter(entry["verdict"] for entry in mine)
    published = Counter(entry["published"] for entry in mine if entry["published"])
    return {
        "name": name,
        "text": claim.text,
        "where": claim.where,
        "places": ", ".join(claim.places),
        "supported": published[HOLDS],
        "published": published.total(),
        "counts": [(verdict, verdicts[verdict]) for verdict in VERDICTS],
        "entries": mine,
    }


def _place(entry: Entry) -> str:
    """Return where in its table a number stands."""
    return ", ".join(filter(None, (entry["section"], entry["column"], entry["bits"], entry["metric"])))


def _signed(number: str, metric: str) -> str:
    """Return a margin with its sign and unit; a dash where there is none."""
    unit = " %" if metrics.of(metric).relative else ""
    return f"{float(number):+.2f}{unit}" if number else "\u2014"
