"""The paper's claims: each comparison with its published margin, ours, its verdict and its outcome.

A verdict says whether the claim holds beyond the noise, an outcome which side is better after correction for the number
of comparisons of a scale. ``claims.csv`` has a line for each comparison.
"""

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from flexround import metrics
from flexround.errors import InputError, SettingsError, suggest
from flexround.results import frames
from flexround.results.cells import Cell
from flexround.results.claims.specs import CLAIMS, Claim, Claims, budget_key
from flexround.results.paired import EXACT, Lead, adjusted, between, decided
from flexround.results.paper_numbers import Key
from flexround.results.table_csv import P_DECIMALS, number
from flexround.settings import validation
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
    published_margin: str
    published: str
    margin: str
    noise: str
    stderr: str
    n_examples: str
    p_value: str
    p_adjusted: str
    verdict: str
    outcome: str
    iterations: str
    other_iterations: str
    scale: str
    task: str
    checkpoint: str
    recipe: str
    other_recipe: str


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


class Place(NamedTuple):
    """A table or figure: its cells, and the published numbers of those whose number can be compared."""

    cells: list[Cell]
    numbers: Mapping[Key, float]


class Comparison(NamedTuple):
    """One pair of cells that a claim is about. Margins are positive where ``one`` is better."""

    name: str  # of the claim
    claim: Claim
    place: str  # table or figure
    one: Cell  # which the claim says is better, or no worse
    other: Cell
    published: float | None  # the paper's margin; None where it has no numbers to compare

    @property
    def lead(self) -> Lead | None:
        """How ``one`` stands against ``other``; None before all seeds of both are there."""
        return between(self.one, self.other) if self.one.complete and self.other.complete else None

    @property
    def published_room(self) -> float | None:
        """How far the published margin is inside what the claim says."""
        return None if self.published is None else round(self.claim.room(self.published, self.one.key.metric), EXACT)


def compare(claims: Mapping[str, Claim], places: Mapping[str, Place], file: str = CLAIMS.name) -> list[Comparison]:
    """Return the comparisons of all claims, claim by claim, in tables and figures, e.g. "table 3".

    ``file`` is what the file of the claims is called in errors.

    Raises:
        SettingsError: a claim names an unknown place, or compares nothing in one of its tables.
    """
    comparisons = []
    for name, place in ((name, place) for name, claim in claims.items() for place in claim.places):
        where = f"{file}: {name}: place"
        if place not in places:
            raise SettingsError(f"{where} {suggest(place, places)}")
        cells, numbers = places[place]
        pairs = list(claims[name].matches(cells))
        if not pairs:
            raise SettingsError(f"{where} {place!r}: none of its cells fits the pairs, sections, columns and metrics")
        comparisons += [Comparison(name, claims[name], place, *pair, _published(*pair, numbers)) for pair in pairs]
    return comparisons


def judge(claim: Claim, metric: str, margin: float, noise: float, p_value: float | None) -> str:
    """Return the verdict on a claim: it holds, or does not, only where chance can't be why.

    Margin and noise are in one unit. The p-value, of "both are equally good", tells nothing of a claim with a bound.
    """
    bounded = claim.within or claim.similar
    side = decided(claim.room(margin, metric), noise, None if bounded else p_value)
    return HOLDS if side > 0 else FAILS if side < 0 else NOISE


def judged(comparisons: Iterable[Comparison], budgets: Mapping[str, int], bounds: Claims) -> pd.DataFrame:
    """Return one line per comparison of a scale, whose p-values are adjusted for all of them.

    ``budgets`` are the iterations of a block, by ``budget_key``; ``bounds`` have those within which methods are equal.
    """
    lines = (_identity(each, budgets) | _published_side(each) | _ours(each) for each in comparisons)
    return frames.made(with_outcomes(lines, bounds), Judgement._fields)


def with_outcomes(lines: Iterable[Mapping[str, str]], bounds: Claims) -> list[dict[str, str]]:
    """Return the lines of a ``claims.csv``, text by column, with ``p_adjusted`` and ``outcome`` if they have a p-value.

    Benjamini and Hochberg's method adjusts the p-values for all lines, which are those of one scale. The unrounded
    ``apart``, which is no column, decides whether methods are equal.
    """
    found = [dict(line) for line in lines]
    tested = [line for line in found if line.get("p_value")]
    for line, p in zip(tested, adjusted([float(line["p_value"]) for line in tested]), strict=True):
        line |= {"p_adjusted": number(p, P_DECIMALS), "outcome": _outcome(line, p, bounds)}
    return found


def _outcome(line: Mapping[str, str], p: float, bounds: Claims) -> str:
    """Return how the first method stands: ahead if adjusted p and 95 % interval, margin ± noise, both say so.

    It is equal to the second one if ``paired.Difference.apart`` lies within the bound: two one-sided tests at 2.5 %.
    Else this end of the interval, rounded up, says how far apart the two may be.
    """
    if side := decided(float(line["margin"]), float(line["noise"] or math.inf), p):
        return BETTER if side > 0 else WORSE
    relative = metrics.of(line["metric"]).relative
    limit, unit = (bounds.equal_percent, "%") if relative else (bounds.equal_points, "points")
    apart = float(line["apart"])
    if round(apart, EXACT) <= limit:
        return f"{EQUAL} within {limit:g} {unit}"
    return UNDECIDED if math.isinf(apart) else f"{UNDECIDED}, at most {math.ceil(10 * apart) / 10:g} {unit} apart"


def _published(one: Cell, other: Cell, numbers: Mapping[Key, float]) -> float | None:
    """Return the published margin in points, of a relative metric in percent of the other number.

    It is None where one of the numbers is missing.
    """
    if one.key not in numbers or other.key not in numbers:
        return None
    metric, rival = metrics.of(one.key.metric), numbers[other.key]
    better = metric.sign * (numbers[one.key] - rival)
    return round(100.0 * better / rival if metric.relative else better, EXACT)


def _identity(comparison: Comparison, budgets: Mapping[str, int]) -> dict[str, str]:
    """Return what is compared, and the iterations of both sides; full precision has none."""
    one, other = comparison.one, comparison.other
    facts = one.key._asdict() | vars(one.run) | {"claim": comparison.name, "place": comparison.place}
    facts |= {"one": one.key.method, "other": other.key.method, "other_recipe": other.run.recipe}
    facts["criterion"] = comparison.claim.criterion(one.key.metric)
    facts["iterations"], facts["other_iterations"] = (str(budgets.get(budget_key(c.run), "")) for c in (one, other))
    return {name: value for name, value in facts.items() if name in Judgement._fields}


def _published_side(comparison: Comparison) -> dict[str, str]:
    """Return the published margin and whether it is what the claim says."""
    if (room := comparison.published_room) is None:
        return {}
    published = "equal" if room == 0 else HOLDS if room > 0 else FAILS
    return {"published_margin": number(comparison.published), "published": published}


def _ours(comparison: Comparison) -> dict[str, str]:
    lead, metric = comparison.lead, comparison.one.key.metric
    if lead is None:
        return {"verdict": NOT_RUN}
    unit = 100.0 / lead.rival.median if metrics.of(metric).relative else 1.0
    ours, noise = unit * metrics.of(metric).sign * lead.sure.value, unit * lead.sure.noise
    return {
        "margin": number(ours),
        "noise": number(noise),
        "stderr": number(unit * lead.sure.stderr),
        "apart": repr(unit * lead.sure.apart),
        "n_examples": str(lead.cell.trials[0].n_examples),
        "p_value": number(lead.sure.p_value, P_DECIMALS),
        "verdict": judge(comparison.claim, metric, ours, noise, lead.sure.p_value),
    }


def load(path: Path, scale: Scale) -> list[JudgedClaim]:
    """Read the ``claims.csv`` of a scale; no claims if it isn't made."""
    lines = frames.load(path, Judgement)
    return by_claim(lines, validation.load(Claims, scale.claims_file).claims, str(path)) if lines else []


def by_claim(lines: Iterable[Judgement], claims: Mapping[str, Claim], name: str = "claims CSV") -> list[JudgedClaim]:
    """Return the claims of the lines of a ``claims.csv`` in its order; ``name`` is what it is called in errors.

    Raises:
        InputError: a claim that ``claims`` lacks.
    """
    judged = []
    for claim, of_claim in itertools.groupby(lines, key=lambda line: line.claim):
        if claim not in claims:
            raise InputError(f"{name}: claim {suggest(claim, claims)}; make it again")
        judged.append(JudgedClaim(claim, claims[claim], list(of_claim)))
    return judged


def total(judged: Iterable[JudgedClaim]) -> dict[str, int]:
    """Return how many comparisons of claims have each verdict."""
    counts = Counter(line.verdict for claim in judged for line in claim.lines)
    return {verdict: counts[verdict] for verdict in VERDICTS}


def against_adaround(claims: Iterable[JudgedClaim]) -> list[Judgement]:
    """Return the comparisons of FlexRound with AdaRound that were run, in rows that differ in the rounding.

    A scale may give the two other iterations, which each line has. Each cell of a table is there once; tables that
    share runs count them once each.
    """
    found = {}
    for line in (line for claim in claims for line in claim.lines):
        rival = line.recipe.replace("flexround", "adaround")
        if line.criterion == "better" and line.other_recipe == rival != line.recipe and line.margin:
            found[line.place, line.section, line.column, line.metric, line.bits, line.recipe] = line
    return list(found.values())
