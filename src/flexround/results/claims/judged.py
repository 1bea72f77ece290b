"""The judged claims: ``claims.csv`` and ``errata.csv``, read once for everything that shows them."""

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from flexround.errors import InputError, suggest
from flexround.io import artifacts
from flexround.results import typed_csv
from flexround.results.claims import specs
from flexround.results.claims.specs import Claim
from flexround.results.paper_numbers import Key
from flexround.results.typed_csv import Printed
from flexround.settings.schema import Scale

HOLDS, FAILS, NOISE, NOT_RUN = VERDICTS = ("holds", "does not hold", "inside the noise", "not run")
BETTER, WORSE, EQUAL, UNDECIDED = "better", "worse", "equal", "undecided"  # outcomes


class Judgement(NamedTuple):
    """A line of ``claims.csv``: one comparison, its published margin, ours, and the verdict."""

    claim: str
    place: str
    section: str
    column: str
    metric: str
    bits: str
    one: str
    other: str
    criterion: str
    published_margin: Printed | None
    published: str
    margin: Printed | None
    noise: Printed | None
    stderr: Printed | None
    p_value: Printed | None
    p_adjusted: Printed | None
    verdict: str
    outcome: str
    iterations: int | None
    other_iterations: int | None
    scale: str
    task: str
    checkpoint: str
    recipe: str
    other_recipe: str


class Erratum(NamedTuple):
    """A line of ``errata.csv``: a number, or row of numbers (``key`` names its first), and what is wrong."""

    kind: str
    key: Key
    value: Printed
    text: str


class JudgedClaim(NamedTuple):
    """A claim with all of its comparisons."""

    name: str
    claim: Claim
    lines: list[Judgement]

    @property
    def counts(self) -> dict[str, int]:
        """How many comparisons have each verdict."""
        return total([self])

    @property
    def published(self) -> Counter[str]:
        """How many of the paper's own margins hold, are equal, or don't hold."""
        return Counter(line.published for line in self.lines if line.published)


def load(path: Path, scale: Scale) -> list[JudgedClaim]:
    """Read the ``claims.csv`` of a scale, see :func:`read`; no claims if it isn't made."""
    if not path.exists():
        return []
    return read(artifacts.read_text(path), specs.load(scale.claims_file).claims, str(path))


def read(text: str, claims: Mapping[str, Claim], name: str = "claims CSV") -> list[JudgedClaim]:
    """Return all claims of ``claims.csv`` in its order.

    Raises:
        InputError: a CSV of another version, or with a claim that ``claims`` lacks.
    """
    judged = []
    for claim, lines in itertools.groupby(typed_csv.read(text, Judgement, name), key=lambda line: line.claim):
        if claim not in claims:
            raise InputError(f"{name}: claim {suggest(claim, claims)}; make it again")
        judged.append(JudgedClaim(claim, claims[claim], list(lines)))
    return judged


def total(judged: Iterable[JudgedClaim]) -> dict[str, int]:
    """Return how many comparisons of claims have each verdict."""
    counts = Counter(line.verdict for claim in judged for line in claim.lines)
    return {verdict: counts[verdict] for verdict in VERDICTS}


def against_adaround(claims: Iterable[JudgedClaim]) -> list[Judgement]:
    """Return the comparisons of FlexRound with AdaRound that were run, in rows that differ in the rounding alone.

    Each cell is there once.
    """
    found = {}
    for line in (line for claim in claims for line in claim.lines):
        rival = line.recipe.removesuffix("-tuned").replace("flexround", "adaround")
        if line.criterion == "better" and line.other_recipe == rival != line.recipe and line.margin is not None:
            found[line.place, line.section, line.column, line.metric, line.bits, line.recipe] = line
    return list(found.values())
