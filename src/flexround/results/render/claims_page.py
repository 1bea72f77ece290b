"""The claims and the errata as one self-contained HTML page, made from their CSVs."""

import csv
import hashlib
from collections import Counter
from collections.abc import Mapping
from typing import Any

from flexround import metrics
from flexround.results.claims.specs import Claim
from flexround.results.claims.verdicts import HOLDS, VERDICTS
from flexround.results.paired import Z
from flexround.results.render import jinja
from flexround.results.render.table_layout import Entry, scale_note
from flexround.settings.schema import ScaleFacts


def render(claims_csv: str, errata_csv: str, claims: Mapping[str, Claim], scale: ScaleFacts) -> str:
    """Return the page, from what ``verdicts.to_csv`` and ``errata.to_csv`` give."""
    entries = list(csv.DictReader(claims_csv.splitlines()))
    return jinja.HTML.get_template("claims.html").render(
        scale=scale,
        note=scale_note(scale),
        z=Z,
        verdicts=VERDICTS,
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
    return f"{float(number):+.2f}{' %' if metrics.of(metric).relative else ''}" if number else "—"
