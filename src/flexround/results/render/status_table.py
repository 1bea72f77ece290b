"""The status table of the README, and putting it there."""

import re
from collections.abc import Iterable, Mapping

from flexround.errors import InputError
from flexround.results.render.notes import scale_note
from flexround.results.render.overview import Standing
from flexround.settings.schema import ScaleFacts

BEGIN, END = "<!-- status: made by `make status` -->", "<!-- end of status -->"


def markdown(standings: Iterable[Standing], scale: ScaleFacts) -> str:
    """Return the status of every table as Markdown, with differences to the paper's numbers if ``scale`` allows."""
    header = ["table", "about", "status", "cells", "FlexRound best"]
    rows = [[str(s.table.number), s.family, s.status, _cells(s.counts), _wins(*s.wins)] for s in standings]
    if scale.comparable:
        header.append("farthest from the paper")
        rows = [[*row, str(s.worst or "--")] for row, s in zip(rows, standings, strict=True)]
    lines = [f"| {' | '.join(cells)} |" for cells in (header, ["---"] * len(header), *rows)]
    note = (
        f"{scale_note(scale)} *FlexRound best*: of the cells that lead their contest by more than the noise, "
        "how many are FlexRound's."
    )
    return "\n".join([note, "", *lines]) + "\n"


def replaced(text: str, table: str, begin: str = BEGIN, end: str = END) -> str:
    """Return a page with everything between two markers, its lines ``begin`` and ``end``, replaced by ``table``.

    Raises:
        InputError: the page has not exactly one pair of markers.
    """
    pattern = re.compile(f"{re.escape(begin)}\n.*?{re.escape(end)}", re.DOTALL)
    new, count = pattern.subn(lambda _: f"{begin}\n{table}{end}", text)
    if count != 1:
        raise InputError(f"{count} places between {begin} and {end}; write these two lines where the table shall stand")
    return new


def _cells(counts: Mapping[str, int]) -> str:
    """Return the number of cells, by status if they differ."""
    if len(counts) < 2:
        return str(sum(counts.values()) or "--")
    return ", ".join(f"{count} {name}" for name, count in counts.items())


def _wins(won: int, settled: int) -> str:
    """Return how often FlexRound is the best, of the cells that have a best."""
    return f"{won} of {settled}" if settled else "--"
