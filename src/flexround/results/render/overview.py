"""The status of each table, counted from its CSV, and a summary of all tables in a few sentences."""

import fnmatch
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from flexround.results import grid
from flexround.results.claims.verdicts import BETTER, EQUAL, FAILS, HOLDS, NOISE, UNDECIDED, WORSE, Judgement
from flexround.results.grid import Entry, TableGrid
from flexround.results.render.words import plain
from flexround.results.table_csv import NOT_RUN
from flexround.settings.tables import Table

FAMILIES = {  # by a table's tasks and models; the first match counts, else the task's own name
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
STATES = ("reproduced", "close", "off", "computed", "partial", "missing", NOT_RUN)  # of a cell, as in the CSV
WORST_FIRST = ("missing", NOT_RUN, "partial", "off", "close", "computed", "reproduced")
NOTHING = "Nothing has been computed at this scale yet, and nothing is published of it."
NO_LEAD = "No claims were judged, and in no contest a method leads by more than the noise."
SHOWN = 5  # runs in a sentence
NARROW = 6  # numbers in a row of a table that takes half of a wide screen


class Standing(NamedTuple):
    """A table with its status."""

    table: Table
    grid: TableGrid | None = None  # the table's cells; None if it isn't made
    published: bool = False  # whether the CSV is from results/reference, because none was computed here

    @property
    def family(self) -> str:
        """The table's family of networks or tasks, by which readers filter."""
        return family(self.table)

    @property
    def title(self) -> str:
        """The first sentence of the caption, as plain text."""
        return plain(self.table.caption).partition(". ")[0].rstrip(".")

    @property
    def wide(self) -> bool:
        """Whether the table has more numbers in a row than half of a wide screen shows."""
        return self.grid is not None and sum(column.width for column in self.grid.columns) > NARROW

    @property
    def precision(self) -> str:
        """The number of seeds and the largest standard error of a value, in words; empty without examples."""
        shown = [entry for entry in self.entries if entry.stderr]
        if not shown:
            return ""
        seeds, error = max(int(entry.n_seeds) for entry in shown), max(float(entry.stderr) for entry in shown)
        return f"Seeds: {seeds}. Standard errors: up to {error:g}."

    @property
    def entries(self) -> list[Entry]:
        """All numbers of the table; none if the table isn't made."""
        return self.grid.entries if self.grid else []

    @property
    def sheets(self) -> dict[Entry, str]:
        """The name of the report's sheet for each number, such as ``3.24``; a sheet tells the number's origin."""
        return {entry: f"{self.table.number}.{index}" for index, entry in enumerate(self.entries)}

    @property
    def counts(self) -> dict[str, int]:
        """The number of cells with each status."""
        found = Counter(entry.status for entry in self.entries)
        return {name: found[name] for name in STATES if found[name]}

    @property
    def status(self) -> str:
        """The status of the table: its worst cell's status, or partial if only some cells have numbers."""
        absent = sum(count for name, count in self.counts.items() if name in ("missing", NOT_RUN))
        if 0 < absent < len(self.entries):
            return "partial"
        return next((name for name in WORST_FIRST if name in self.counts), NOT_RUN)

    @property
    def cells(self) -> str:
        """The number of cells, by status if they differ."""
        by_status = ", ".join(f"{count} {name}" for name, count in self.counts.items())
        return by_status if len(self.counts) > 1 else by_status.partition(" ")[0]

    @property
    def worst(self) -> str:
        """The largest difference from the paper's numbers; empty if the scale isn't comparable."""
        return max(
            (entry.delta for entry in self.entries if entry.delta), key=lambda delta: abs(float(delta)), default=""
        )

    @property
    def wins(self) -> tuple[int, int]:
        """The number of cells that are best by more than the noise: FlexRound's, and all."""
        return self.grid.wins if self.grid else (0, 0)

    @property
    def led(self) -> str:
        """The wins in words, such as ``2 of 3``; empty if no cell is best."""
        return "{} of {}".format(*self.wins) if self.wins[1] else ""


def standing(table: Table, path: Path, published: bool = False) -> Standing:
    """Return the status of a table, read from its CSV, which may be the published CSV."""
    return Standing(table, grid.load(path) if path.exists() else None, published)


def family(table: Table) -> str:
    """Return the family of a table."""
    return family_of([name for pair in table.pairs() for name in pair])


def family_of(names: Sequence[str]) -> str:
    """Return the family of tasks and checkpoints with these names; the first name is a task."""
    return next((found for pattern, found in FAMILIES.items() if fnmatch.filter(names, pattern)), names[0])


def sentences(
    verdicts: Mapping[str, int], leads: Sequence[Judgement], standings: Sequence[Standing], others: Sequence[str] = ()
) -> list[str]:
    """Return the first sentences of the report.

    ``verdicts`` counts the comparisons of all claims, ``leads`` are the comparisons of FlexRound with AdaRound, and
    ``others`` are evaluated runs that no table shows.
    """
    found = []
    if judged := verdicts[HOLDS] + verdicts[FAILS] + verdicts[NOISE]:
        found.append(
            f"Of {judged} comparisons that test the paper's claims, {verdicts[HOLDS]} hold, {verdicts[FAILS]} do not, "
            f"and {verdicts[NOISE]} are inside the noise."
        )
    if verdicts[NOT_RUN]:
        found.append(f"{verdicts[NOT_RUN]} more were not run.")
    if leads:
        found.append(outcomes(leads))
    won, settled = (sum(standing.wins[side] for standing in standings) for side in (0, 1))
    if settled:
        found.append(
            f"Of the {settled} cells that beat every other method by more than the noise, {won} are FlexRound's."
        )
    reached = Counter(entry.status for standing in standings for entry in standing.entries)
    if compared := reached["reproduced"] + reached["close"] + reached["off"]:
        found.append(f"{reached['reproduced']} of {compared} cells are within the tolerance of the paper's number.")
    if others:
        shown = [*others[:SHOWN], *([f"{len(others) - SHOWN} more"] if len(others) > SHOWN else [])]
        found.append(f"Evaluated, but in no table of this page: {', '.join(shown)}.")
    computed = set(reached) - {"missing", NOT_RUN}
    return found or [NO_LEAD if computed else NOTHING]


def outcomes(leads: Sequence[Judgement]) -> str:
    """Return the sentence that counts the outcomes of the comparisons of FlexRound with AdaRound."""
    of = Counter(line.outcome.partition(",")[0] for line in leads if line.outcome)
    equal = sorted(outcome for outcome in of if outcome.startswith(EQUAL)) or [EQUAL]
    first, *rest = (f"{of[outcome]} {outcome}" for outcome in (*equal, UNDECIDED))
    shared = ", ".join((first.replace(" ", " are ", 1), *rest))
    return (
        f"Of {of.total()} comparisons with AdaRound, FlexRound wins {of[BETTER]} and loses {of[WORSE]}; {shared} (p "
        "values corrected by Benjamini and Hochberg's method for all comparisons)."
    )
