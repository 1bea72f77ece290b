"""The paper's claims: each comparison with its published margin, ours, its verdict and its outcome.

A verdict tells whether the claim holds beyond the noise. An outcome names the better side after the p values are
corrected for the number of comparisons in a scale. ``claims.csv`` has a line for each comparison.
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
        """The number of comparisons with each verdict."""
        return total([self])

    @property
    def published(self) -> Counter[str]:
        """The number of the paper's own margins that hold, are equal, or don't hold."""
        return Counter(line.published for line in self.lines if line.published)


class Place(NamedTuple):
    """A table or figure: its cells, and the published numbers of the comparable cells."""

    cells: list[Cell]
    numbers: Mapping[Key, float]


class Comparison(NamedTuple):
    """One pair of cells that a claim compares. Margins are positive where ``one`` is better."""

    name: str  # of the claim
    claim: Claim
    place: str  # table or figure
    one: Cell  # the better or no worse cell, according to the claim
    other: Cell
    published: float | None  # the paper's margin; None if a published number is missing

    @property
    def lead(self) -> Lead | None:
        """The lead of ``one`` over ``other``; None until all seeds of both are evaluated."""
        return between(self.one, self.other) if self.one.complete and self.other.complete else None

    @property
    def published_room(self) -> float | None:
        """The distance of the published margin from the claim's limit; negative if it contradicts the claim."""
        return None if self.published is None else round(self.claim.room(self.published, self.one.key.metric), EXACT)


def compare(claims: Mapping[str, Claim], places: Mapping[str, Place], file: str = CLAIMS.name) -> list[Comparison]:
    """Return the comparisons of all claims, claim by claim, in tables and figures, e.g. "table 3".

    Error messages call the file of claims ``file``.

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
    """Return the verdict on a claim: it holds or fails only if chance can't explain the margin.

    Margin and noise have the same unit. The p value tests "both are equally good"; a claim with a bound ignores it.
    """
    bounded = claim.within or claim.similar
    side = decided(claim.room(margin, metric), noise, None if bounded else p_value)
    return HOLDS if side > 0 else FAILS if side < 0 else NOISE


def judged(comparisons: Iterable[Comparison], budgets: Mapping[str, int], bounds: Claims) -> pd.DataFrame:
    """Return one line per comparison of a scale, with p values adjusted for all comparisons.

    ``budgets`` are the iterations of a block by ``budget_key``; ``bounds`` has the limits for equal methods.
    """
    lines = (_identity(each, budgets) | _published_side(each) | _ours(each) for each in comparisons)
    return frames.made(with_outcomes(lines, bounds), Judgement._fields)


def with_outcomes(lines: Iterable[Mapping[str, str]], bounds: Claims) -> list[dict[str, str]]:
    """Return the lines of a ``claims.csv``, text by column, with ``p_adjusted`` and ``outcome`` if they have a p value.

    Benjamini and Hochberg's method adjusts the p values for all lines; the lines are from one scale. The unrounded
    ``apart``, which is not a column, decides whether methods are equal.
    """
    found = [dict(line) for line in lines]
    tested = [line for line in found if line.get("p_value")]
    for line, p in zip(tested, adjusted([float(line["p_value"]) for line in tested]), strict=True):
        line |= {"p_adjusted": number(p, P_DECIMALS), "outcome": _outcome(line, p, bounds)}
    return found


def _outcome(line: Mapping[str, str], p: float, bounds: Claims) -> str:
    """Return the outcome: a method is better if the adjusted p value and the 95 % interval, margin ± noise, agree.

    Otherwise both are equal if ``paired.Difference.apart`` is within the bound: two one-sided tests at 2.5 %. If it is
    not, the outcome is undecided and gives ``apart``, rounded up.
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
    """Return the published margin in points, or for a relative metric in percent of the other number.

    The margin is None if one of the numbers is missing.
    """
    if one.key not in numbers or other.key not in numbers:
        return None
    metric, rival = metrics.of(one.key.metric), numbers[other.key]
    better = metric.sign * (numbers[one.key] - rival)
    return round(100.0 * better / rival if metric.relative else better, EXACT)


def _identity(comparison: Comparison, budgets: Mapping[str, int]) -> dict[str, str]:
    """Return the names of both sides and their iterations; full precision has no iterations."""
    one, other = comparison.one, comparison.other
    facts = one.key._asdict() | vars(one.run) | {"claim": comparison.name, "place": comparison.place}
    facts |= {"one": one.key.method, "other": other.key.method, "other_recipe": other.run.recipe}
    facts["criterion"] = comparison.claim.criterion(one.key.metric)
    facts["iterations"], facts["other_iterations"] = (str(budgets.get(budget_key(c.run), "")) for c in (one, other))
    return {name: value for name, value in facts.items() if name in Judgement._fields}


def _published_side(comparison: Comparison) -> dict[str, str]:
    """Return the published margin and whether it supports the claim."""
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
    """Read the ``claims.csv`` of a scale; return no claims if the file is missing."""
    lines = frames.load(path, Judgement)
    return by_claim(lines, validation.load(Claims, scale.claims_file).claims, str(path)) if lines else []


def by_claim(lines: Iterable[Judgement], claims: Mapping[str, Claim], name: str = "claims CSV") -> list[JudgedClaim]:
    """Group the lines of a ``claims.csv`` by claim, in the file's order; error messages call the file ``name``.

    Raises:
        InputError: ``claims`` lacks a claim of the file.
    """
    judged = []
    for claim, of_claim in itertools.groupby(lines, key=lambda line: line.claim):
        if claim not in claims:
            raise InputError(f"{name}: claim {suggest(claim, claims)}; make it again")
        judged.append(JudgedClaim(claim, claims[claim], list(of_claim)))
    return judged


def total(judged: Iterable[JudgedClaim]) -> dict[str, int]:
    """Return the number of comparisons with each verdict."""
    counts = Counter(line.verdict for claim in judged for line in claim.lines)
    return {verdict: counts[verdict] for verdict in VERDICTS}


def against_adaround(claims: Iterable[JudgedClaim]) -> list[Judgement]:
    """Return the evaluated comparisons of FlexRound with AdaRound whose rows differ only in the rounding.

    A scale may give the two methods different iterations; each line lists both. Each cell of a table counts once; a
    run that several tables show counts once per table.
    """
    found = {}
    for line in (line for claim in claims for line in claim.lines):
        rival = line.recipe.replace("flexround", "adaround")
        if line.criterion == "better" and line.other_recipe == rival != line.recipe and line.margin:
            found[line.place, line.section, line.column, line.metric, line.bits, line.recipe] = line
    return list(found.values())
