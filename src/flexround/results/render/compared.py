"""Every number that two methods of the report can be compared in, for the page's script."""

import re
from collections.abc import Iterable
from typing import Any

from flexround import metrics
from flexround.results.paper_numbers import SETTING
from flexround.results.render import pictures, words
from flexround.results.render.overview import Standing
from flexround.settings.plan import Plan


def numbers(standings: Iterable[Standing], plan: Plan) -> list[dict[str, Any]]:
    """Return what a number is of, and its value, standard error and published value, as numbers or None.

    ``bits`` are empty for full precision, which stands beside all bits. ``run`` tells which numbers are of one run.
    """
    return [
        {
            "sheet": f"{standing.table.number}.{index}",
            "table": standing.table.title,
            "method": re.sub(r"\s*\+\s*", " + ", entry.method),  # the paper writes Q+FlexRound, too
            "cell": ", ".join(filter(None, (entry.section, entry.column, words.of(entry.metric)))),
            "bits": "" if pictures.whole(plan, entry.recipe) else entry.bits,
            "run": "/".join((entry.task, entry.checkpoint, entry.recipe, entry.metric)),
            "relative": metrics.of(entry.metric).relative,
            "better": 1 if metrics.of(entry.metric).higher_is_better else -1,
            "value": entry.value,
            "stderr": entry.stderr,
            "published": entry.published,
        }
        for standing in standings
        for index, entry in enumerate(standing.entries)
        if entry.metric != SETTING and entry.method
    ]
