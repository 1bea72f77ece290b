"""How each table stands: counted from its CSV."""

import fnmatch
from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import NamedTuple

from flexround.io import artifacts
from flexround.results import grid
from flexround.results.grid import Entry, TableGrid
from flexround.results.render.notes import plain
from flexround.results.table_csv import NOT_RUN
from flexround.results.typed_csv import Printed
from flexround.settings.tables import Table

FAMILIES = {  # of a table's tasks and models; the first that fits
    "llama-*": "LLaMA",
    "imagenet": "ImageNet",
    "cifar10": "CIFAR-10",
    "photographs": "Photographs",
    "squad": "SQuAD",
    "glue-*": "GLUE",
    "wikitext2": "Language modelling",
    "ptb": "Language modelling",
    "tinystories": "Language modelling",
    "commonsense": "Common-sense reasoning",
    "webnlg": "Generation",
}
STATES = ("reproduced", "close", "off", "computed", "partial", "missing", NOT_RUN)  # as in the CSV


class Standing(NamedTuple):
    """A table and how it stands."""

    table: Table
    family: str  # what it is about, for the reader to choose by
    title: str  # the first sentence of the caption, plain text
    grid: TableGrid | None = None  # its cells; None if it isn't made
    status: str = NOT_RUN  # of the whole table, one of STATES
    counts: Mapping[str, int] = {}  # cells by status
    worst: Printed | None = (
        None  # the difference of the cell farthest from the paper's; None where that may not be said
    )
    published: bool = False  # whether its CSV is that of results/reference, because none was computed here
    wins: tuple[int, int] = (0, 0)  # how many cells best by more than the noise are FlexRound's, and how many there are

    @property
    def entries(self) -> list[Entry]:
        """All numbers of the table; none if it isn't made."""
        return self.grid.entries if self.grid else []


def standing(table: Table, path: Path, published: bool = False) -> Standing:
    """Return how a table stands, by its CSV, which may be the published one.

    Raises:
        InputError: a CSV made by another version.
    """
    unknown = Standing(table, family(table), plain(table.caption).partition(". ")[0].rstrip("."))
    if not path.exists():
        return unknown
    found = grid.read(artifacts.read_text(path), str(path))
    counts = Counter(entry.status for entry in found.entries)
    deltas = [entry.delta for entry in found.entries if entry.delta is not None]
    return unknown._replace(
        grid=found,
        published=published,
        status=status(counts),
        counts={name: counts[name] for name in STATES if counts[name]},
        worst=max(deltas, key=abs, default=None),
        wins=found.wins,
    )


def status(counts: Counter[str]) -> str:
    """Return the status of a table: that of its worst cell, but partial if some cells are there and some aren't."""
    if 0 < counts["missing"] + counts[NOT_RUN] < counts.total():
        return "partial"
    order = ("missing", NOT_RUN, "partial", "off", "close", "computed", "reproduced")
    return next(name for name in order if counts[name])


def family(table: Table) -> str:
    """Return what a table is about."""
    return family_of([name for pair in table.pairs() for name in pair])


def family_of(names: Collection[str]) -> str:
    """Return what tasks and checkpoints of these names are about."""
    return next((found for pattern, found in FAMILIES.items() if fnmatch.filter(names, pattern)), "Other")
