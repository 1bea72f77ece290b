"""The judged claims of ``claims.csv``, claim by claim, for the page."""

import csv
import itertools
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from flexround.errors import InputError, suggest
from flexround.io import artifacts
from flexround.results.claims import specs
from flexround.results.claims.verdicts import VERDICTS

HIDDEN = ("claim", "stderr", "scale", "task", "checkpoint", "recipe", "other_recipe")  # said once, or in the tables


class Judged(NamedTuple):
    """A claim: its name, what it says and where, how many comparisons have each verdict, and a line for each."""

    name: str
    text: str
    where: str
    counts: dict[str, int]
    header: list[str]
    lines: list[list[str]]


def read(path: Path, settings: Path = specs.CLAIMS) -> list[Judged]:
    """Return all claims of ``claims.csv`` in its order; none if it isn't made.

    Raises:
        InputError: it has a claim that ``settings``, such as ``params/claims.yaml``, lacks.
    """
    if not path.exists():
        return []
    words, judged = specs.load(settings).claims, []
    reader = csv.DictReader(artifacts.read_text(path).splitlines())
    for name, group in itertools.groupby(reader, key=lambda line: line["claim"]):
        if name not in words:
            raise InputError(f"{path}: claim {suggest(name, words)}; make it again")
        lines = list(group)
        every = Counter(line["verdict"] for line in lines)
        counts = {verdict: every[verdict] for verdict in VERDICTS if every[verdict]}
        # the verdict comes first, columns in which the claim has nothing are left out
        used = [column for column in lines[0] if column not in HIDDEN and any(line[column] for line in lines)]
        header = ["verdict", *(column for column in used if column != "verdict")]
        rows = [[line[column] for column in header] for line in lines]
        judged.append(Judged(name, words[name].text, words[name].where, counts, header, rows))
    return judged


def total(claims: Sequence[Judged]) -> dict[str, int]:
    """Return how many comparisons of all claims have each verdict."""
    return {verdict: sum(claim.counts.get(verdict, 0) for claim in claims) for verdict in VERDICTS}
