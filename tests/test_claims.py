"""Claims and errata: which cells are compared, verdicts, outcomes, and what is wrong with the published numbers."""

import contextlib
import csv
import functools
import itertools
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from stage_calls import call
from table_runs import (
    OF_RUNS,
    Q_W8A8,
    RECIPES,
    TABLE,
    complete,
    figure7,
    fill,
    hits,
    loaded,
    numbers,
    scope,
    write,
    write_run,
)

from flexround.errors import SettingsError
from flexround.jobs import resolve
from flexround.jobs.tables import budgets
from flexround.results import cells, frames, paper_numbers
from flexround.results.cells import Scope
from flexround.results.claims import specs, verdicts
from flexround.results.claims.verdicts import FAILS, HOLDS, NOISE
from flexround.settings import validation
from flexround.settings.layout import PARAMS, ROOT
from flexround.settings.plan import Plan
from flexround.settings.validation import validate

PAIR = ("strong", "weak")
SPEC = validation.load(specs.Claims, PARAMS / "claims.yaml")
MISTAKES = frames.load(paper_numbers.ERRATA, paper_numbers.Erratum)
BOUNDS = specs.Claims(claims={}, equal_points=0.5, equal_percent=1)


def claim(pairs: object = (PAIR,), **changes: object) -> specs.Claim:
    value = {"where": "here", "text": "It is so.", "places": ["table 99"], "pairs": pairs}
    return validate(specs.Claim, value | changes, "test")


def _lines(comparisons: list[verdicts.Comparison], spent: Mapping[str, int] = {}) -> list[dict[str, str]]:
    return list(csv.DictReader(frames.text(verdicts.judged(comparisons, spent, SPEC)).splitlines()))


def judged(root: Path, one: specs.Claim, seeds: int = 1, **spent: int) -> list[dict[str, str]]:
    """Return the lines of one claim about the made-up table."""
    place = verdicts.Place(cells.collect(TABLE, scope(root, seeds)), numbers(TABLE))
    return _lines(verdicts.compare({"it": one}, {"table 99": place}), spent)


@functools.cache
def paper_places() -> dict[str, verdicts.Place]:
    """Return the paper's tables and figure 7 without any run."""
    printed, params = paper_numbers.load(), loaded("paper")
    everything = Scope("paper", params.recipes.recipes, 1, Path("nowhere"))
    places = {table.place: verdicts.Place(cells.collect(table, everything), printed) for table in OF_RUNS.values()}
    return places | {"figure 7": verdicts.Place(*figure7(params))}


def reference(name: str) -> str:
    return (ROOT / "results/reference" / name).read_text()


# verdicts


@pytest.mark.parametrize(
    ("changes", "margin", "noise", "p_value", "verdict"),
    [
        ({}, 1.0, 0.5, 0.01, HOLDS),
        ({}, -1.0, 0.5, 0.01, FAILS),
        ({}, 0.5, 0.5, 0.01, NOISE),  # not beyond it
        ({}, 1.0, 0.5, 0.06, NOISE),  # the test disagrees
        ({}, 1.0, 0.5, None, HOLDS),  # nothing to test
        ({}, 0.0, 0.0, 1.0, NOISE),  # a tie
        ({"within": {"top1": 2}}, -1.0, 0.5, 0.9, HOLDS),  # p is of no difference at all
        ({"within": {"top1": 2}}, -1.8, 0.5, 0.01, NOISE),
        ({"similar": {"top1": 0.3}}, -0.1, 0.1, 1.0, HOLDS),
        ({"similar": {"top1": 0.3}}, 0.1, 0.5, 1.0, NOISE),
        ({"similar": {"top1": 0.3}}, -1.0, 0.5, 0.01, FAILS),
    ],
)
def test_verdict(changes: dict[str, object], margin: float, noise: float, p_value: float | None, verdict: str) -> None:
    assert verdicts.judge(claim(**changes), "top1", margin, noise, p_value) == verdict


def test_a_lead_beyond_the_noise_holds_and_its_reverse_does_not(tmp_path: Path) -> None:
    complete(tmp_path)  # strong gets 40 of 1000 more than weak, and all that weak gets
    spent = {"imagenet/net/strong": 5000}
    there, back = (judged(tmp_path, claim([pair]), **spent)[0] for pair in (PAIR, PAIR[::-1]))
    assert (there["margin"], there["stderr"], there["verdict"]) == ("4.00", "0.62", "holds")
    assert (back["margin"], back["noise"], back["verdict"]) == ("-4.00", "1.22", "does not hold")
    assert there["p_value"] == back["p_value"] == "0.0000"
    assert (there["one"], there["other"], there["bits"]) == ("B + Strong", "B + Weak", "4/32")
    assert (there["iterations"], there["other_iterations"]) == ("5000", "")


@pytest.mark.parametrize("missing", PAIR)
def test_a_missing_row_or_seed_is_not_run(tmp_path: Path, missing: str) -> None:
    for recipe in PAIR:
        for seed in range(1 if recipe == missing else 2):
            write(tmp_path, recipe, hits(700), seed=seed)
    names = ("verdict", "margin", "published_margin", "published")
    found = judged(tmp_path, claim(), seeds=2)
    assert {tuple(line[name] for name in names) for line in found} == {("not run", "", "0.00", "equal")}


def test_perplexities_are_compared_in_percent_lower_is_better(tmp_path: Path) -> None:
    scores = {"full-precision": hits(400), "q-adaround-w8a8": hits(500), "q-flexround-w8a8": hits(450)}
    fill(tmp_path, OF_RUNS["table05"], scores)
    found = cells.collect(OF_RUNS["table05"], Scope("mini", dict.fromkeys(scores, RECIPES["bare"]), 1, tmp_path))
    place = {"table 5": verdicts.Place(found, paper_numbers.load())}
    better = claim([("q-flexround-w8a8", "q-adaround-w8a8")], places=["table 5"])
    near = claim([("q-flexround-w8a8", "full-precision")], places=["table 5"], within={"perplexity": 10})
    first, *_ = lines = _lines(verdicts.compare({"a": better, "b": near}, place))
    assert len(lines) == 2 * 12
    assert (first["margin"], first["verdict"]) == ("10.00", "holds")  # 45 against 50
    assert first["published_margin"] == f"{100 * (30.52 - 24.30) / 30.52:.2f}"
    assert (lines[12]["margin"], lines[12]["criterion"]) == ("-12.50", "worse by less than 10")  # 45 against 40
    deviation = np.std(hits(450).astype(float) - hits(400), ddof=1) * 100 / np.sqrt(1000)
    assert lines[12]["stderr"] == f"{deviation * 100 / 40:.2f}"


# outcomes: corrected for the number of comparisons


@pytest.mark.parametrize(
    ("margin", "noise", "p", "metric", "apart", "outcome"),
    [
        ("0.30", "0.10", "0.0010", "top1", 0.4, "better"),  # within the bound, but there
        ("-0.30", "0.20", "0.0500", "matthews", 0.5, "equal within 0.5 points"),  # the test disagrees with the interval
        ("-0.30", "0.20", "0.2000", "top1", 0.5001, "undecided, at most 0.6 points apart"),
        ("0.40", "0.60", "0.2000", "perplexity", 1.0, "equal within 1 %"),
        ("1.00", "1.10", "0.0100", "perplexity", 2.1, "undecided, at most 2.1 % apart"),  # the test says else
        ("0.00", "", "1.0000", "top1", np.inf, "undecided"),  # one example has no interval
    ],
)
def test_outcome(margin: str, noise: str, p: str, metric: str, apart: float, outcome: str) -> None:
    line = {"margin": margin, "noise": noise, "p_value": p, "metric": metric, "apart": repr(apart)}
    tested, untested = verdicts.with_outcomes([line, {"margin": ""}], BOUNDS)
    assert (tested["p_adjusted"], tested["outcome"]) == (p, outcome)
    assert untested == {"margin": ""}


@pytest.mark.parametrize("name", ["claims.csv", "real-claims.csv"])
def test_published_p_values_are_adjusted_as_scipy_does(name: str) -> None:
    lines = [line for line in csv.DictReader(reference(name).splitlines()) if line["p_value"]]
    p, adjusted = ([float(line[key]) for line in lines] for key in ("p_value", "p_adjusted"))
    assert adjusted == pytest.approx(list(stats.false_discovery_control(p)), abs=5.1e-5)


# what is compared


OURS = ("margin", "noise", "stderr", "n_examples", "p_value", "p_adjusted", "verdict", "outcome", "scale")


def test_claims_compare_and_the_paper_supports_what_is_published() -> None:
    usable = paper_numbers.without_copies(paper_numbers.load(), MISTAKES)
    places = {name: place._replace(numbers=usable) for name, place in paper_places().items() if name != "figure 7"}
    places["figure 7"] = paper_places()["figure 7"]
    found = _lines(verdicts.compare(SPEC.claims, places), budgets(Plan(loaded("mini"))))
    published = list(csv.DictReader(reference("claims.csv").splitlines()))
    for line in (*found, *published):
        for name in OURS:
            del line[name]
    assert found == published


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"places": ["table 98"]}, r"it: place 'table 98' \(did you mean 'table 99'"),
        ({"columns": ["Net_19"]}, "none of its cells"),
    ],
)
def test_a_claim_about_nothing_is_refused(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        judged(tmp_path, claim(**changes))


@pytest.mark.parametrize("name", SPEC.claims)
def test_every_part_of_a_shipped_claim_compares_something(name: str) -> None:
    one, places = SPEC.claims[name], paper_places()
    matched = {pair: [] for pair in one.pairs}
    for pair, place in itertools.product(one.pairs, one.places):
        matched[pair] += one.model_copy(update={"pairs": (pair,)}).matches(places[place].cells)
    assert all(matched.values())
    keys = [cell.key for pairs in matched.values() for cell, _ in pairs]
    assert set(one.columns) <= {key.column for key in keys}
    assert set(one.sections) <= {key.section for key in keys}
    assert {*one.metrics, *one.within, *one.similar} <= {key.metric for key in keys}


@pytest.mark.parametrize(("scale", "least", "unclaimed"), [("paper", 100, {"table 10"}), ("real", 18, set())])
def test_flexround_is_compared_with_adaround_wherever_both_stand(scale: str, least: int, unclaimed: set[str]) -> None:
    """But in table 10, whose FlexRound row is compared with itself, equalized, and on parts of the images."""
    params, pair = loaded(scale), ("{setting}-flexround-{bits}", "{setting}-adaround-{bits}")
    facing = specs.Claim(where="", text="", places=(), pairs=(pair,))
    everything = Scope(scale, params.recipes.recipes, 1, Path("nowhere"))
    tables = {t.place: cells.collect(t, everything) for t in params.tables.values() if t.groups}
    both = {(cell.run, cell.metric): place for place, of in tables.items() for cell, _ in facing.matches(of)}
    claims = validation.load(specs.Claims, params.scale.claims_file).claims.values()
    pairs = [pair for claim in claims for place in claim.places for pair in claim.matches(tables.get(place, []))]
    claimed = {(one.run, one.metric) for one, other in pairs if "adaround" in other.run.recipe}
    assert len(both) >= least
    assert {both[run] for run in both.keys() - claimed if not run[1].startswith("top1_")} <= unclaimed


# errata


def test_errata_are_printed_numbers_and_have_the_tables_marks() -> None:
    assert paper_numbers.errata(True) == reference("errata.csv")
    printed = paper_numbers.load()
    keys = [paper_numbers.Key(*erratum[1:8]) for erratum in MISTAKES]
    assert [printed[key] for key in keys] == [float(erratum.value) for erratum in MISTAKES]
    marked = [(table.number, note) for table in OF_RUNS.values() for note in table.errata]
    assert marked, "tables 20 and 21"
    for number, note in marked:
        columns = {erratum.column for erratum in MISTAKES if erratum[1:3] == (number, note.row)}
        assert columns & {note.column} if note.column else columns, (number, note)


# the stage


def test_who_made_one_table_gets_the_claims_about_it(tmp_path: Path) -> None:
    fill(tmp_path / "results", OF_RUNS["table12"], Q_W8A8)
    with contextlib.chdir(tmp_path):
        call("claims", resolve.job(Plan(loaded("mini")), "claims").file)
    names = ("claims.csv", "errata.csv")
    text, mistakes = ((tmp_path / "results/mini" / name).read_text() for name in names)
    lines = list(csv.DictReader(text.splitlines()))
    assert {line["claim"] for line in lines if line["verdict"] != "not run"} == {"squad"}
    assert [line["verdict"] for line in lines if line["claim"] == "squad"] == ["holds", "holds"]
    void = {(line["place"], line["section"]) for line in lines if not line["published_margin"]}
    assert void == {("table 20", "LLaMA-33B")}, "whose AdaRound row is a copy"
    assert len(mistakes.splitlines()) > 20


def test_an_incomplete_table_or_figure_is_not_run(tmp_path: Path) -> None:
    params = loaded("mini")
    fill(tmp_path / "results", OF_RUNS["table12"], Q_W8A8)
    for number, run in enumerate(Plan(params).figure_runs(7)):
        write_run(tmp_path / "results", run, hits(900 - 10 * number), ["top1", "top5"])
    few = {name: value for name, value in params.scale.checkpoints.items() if name != "bert-large"}
    lacking = params._replace(scale=params.scale.model_copy(update={"checkpoints": few}))
    selected = {"checkpoints": "bert-base"}
    for plan, places in ((Plan(params, selected), {"table 12"}), (Plan(lacking), {"figure 7"})):
        with contextlib.chdir(tmp_path):
            call("claims", resolve.job(plan, "claims").file)
        lines = csv.DictReader((tmp_path / "results/mini/claims.csv").read_text().splitlines())
        run = {line["place"] for line in lines if line["verdict"] != "not run"}
        assert run & {"figure 7", "table 12"} == places
