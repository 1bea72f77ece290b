"""Claims: which cells are compared, what the verdicts are, and what is left of them without runs."""

import contextlib
import csv
import functools
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from stage_calls import call
from table_runs import METRICS, OF_RUNS, RECIPES, TABLE, complete, figure7, fill, hits, numbers, scope, write
from visible_text import offline, visible

from flexround.errors import SettingsError
from flexround.jobs import resolve
from flexround.jobs.claims import budgets as planned_budgets
from flexround.results import cells, paper_numbers
from flexround.results.cells import Scope
from flexround.results.claims import specs, verdicts
from flexround.settings.layout import Run
from flexround.settings.load import load_params
from flexround.settings.plan import Plan
from flexround.settings.validation import validate

PAIR = ("strong", "weak")


def claim(pairs: object = (PAIR,), **changes: object) -> specs.Claim:
    value = {"where": "here", "text": "It is so.", "places": ["table 99"], "pairs": pairs}
    return validate(specs.Claim, value | changes, "test")


def _lines(comparisons: list[verdicts.Comparison], budgets: Mapping[str, int] = {}) -> list[dict[str, str]]:
    return list(csv.DictReader(verdicts.to_csv(comparisons, budgets, specs.load()).splitlines()))


def judged(root: Path, one: specs.Claim, seeds: int = 1) -> list[dict[str, str]]:
    """Return the lines of one claim about the made-up table."""
    place = verdicts.Place(cells.collect(TABLE, scope(root, seeds)), numbers(TABLE))
    return _lines(verdicts.compare({"it": one}, {"table 99": place}))


@functools.cache
def paper_places() -> dict[str, verdicts.Place]:
    """Return the paper's tables and figure 7 without any run."""
    printed, params = paper_numbers.load(), load_params("paper")
    everything = Scope("paper", params.recipes.recipes, 1, Path("nowhere"))
    places = {table.place: verdicts.Place(cells.collect(table, everything), printed) for table in OF_RUNS.values()}
    return places | {"figure 7": verdicts.Place(*figure7(params))}


def shipped(name: str) -> list[dict[str, str]]:
    """Return the comparisons of a shipped claim, by the published numbers alone."""
    return _lines(verdicts.compare({name: specs.load().claims[name]}, paper_places()))


# verdicts


@pytest.mark.parametrize(
    ("changes", "margin", "noise", "p_value", "verdict"),
    [
        ({}, 1.0, 0.5, 0.01, verdicts.HOLDS),
        ({}, -1.0, 0.5, 0.01, verdicts.FAILS),
        ({}, 0.4, 0.5, 0.01, verdicts.NOISE),
        ({}, 1.0, 0.5, 0.06, verdicts.NOISE),  # the test disagrees
        ({}, 1.0, 0.5, None, verdicts.HOLDS),  # nothing to test
        ({}, 0.0, 0.0, 1.0, verdicts.NOISE),  # a tie
        ({}, 9.0, float("inf"), None, verdicts.NOISE),
        ({"within": {"top1": 2}}, -1.0, 0.5, 0.01, verdicts.HOLDS),
        ({"within": {"top1": 2}}, -1.0, 0.5, 0.9, verdicts.HOLDS),  # p is of no difference at all
        ({"within": {"top1": 2}}, -1.8, 0.5, 0.01, verdicts.NOISE),
        ({"within": {"top1": 2}}, -2.2, 0.5, 0.01, verdicts.NOISE),
        ({"within": {"top1": 2}}, -2.6, 0.5, 0.01, verdicts.FAILS),
        ({"similar": {"top1": 0.3}}, -0.1, 0.1, 1.0, verdicts.HOLDS),
        ({"similar": {"top1": 0.3}}, 0.1, 0.5, 1.0, verdicts.NOISE),
        ({"similar": {"top1": 0.3}}, -1.0, 0.5, 0.01, verdicts.FAILS),
    ],
)
def test_verdict(changes: dict[str, object], margin: float, noise: float, p_value: float | None, verdict: str) -> None:
    assert verdicts.judge(claim(**changes), "top1", margin, noise, p_value) == verdict


def test_a_lead_beyond_the_noise_holds_and_its_reverse_does_not(tmp_path: Path) -> None:
    complete(tmp_path)  # strong gets 40 of 1000 more than weak, and all that weak gets
    there, back = (judged(tmp_path, claim([pair]))[0] for pair in (PAIR, PAIR[::-1]))
    assert (there["margin"], there["stderr"], there["verdict"]) == ("4.00", "0.62", "holds")
    assert (back["margin"], back["noise"], back["verdict"]) == ("-4.00", "1.22", "does not hold")
    assert there["p_value"] == back["p_value"] == "0.0000"
    assert (there["one"], there["other"], there["bits"]) == ("B + Strong", "B + Weak", "4/32")


@pytest.mark.parametrize("missing", PAIR)
def test_a_missing_row_or_seed_is_not_run(tmp_path: Path, missing: str) -> None:
    for recipe in PAIR:
        for seed in range(1 if recipe == missing else 2):
            write(tmp_path, recipe, hits(700), seed=seed)
    found = judged(tmp_path, claim(), seeds=2)
    assert {line["verdict"] for line in found} == {"not run"}
    assert {line["margin"] for line in found} == {""}
    assert {line["published_margin"] for line in found} == {"0.00"}
    assert {line["published"] for line in found} == {"equal"}


def test_perplexities_are_compared_in_percent_and_the_lower_is_better(tmp_path: Path) -> None:
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


def test_both_budgets_are_named(tmp_path: Path) -> None:
    complete(tmp_path)
    place = verdicts.Place(cells.collect(TABLE, scope(tmp_path)), numbers(TABLE))
    comparisons = verdicts.compare({"it": claim()}, {"table 99": place})
    run = comparisons[0].one.run
    lines = _lines(comparisons, {verdicts.budget_key(run): 5000})
    assert (lines[0]["iterations"], lines[0]["other_iterations"]) == ("5000", "")


def test_budgets_are_those_of_the_settings() -> None:
    params = load_params("paper")
    budgets = planned_budgets(Plan(params))
    assert budgets["imagenet/resnet18-brecq/b-flexround-w4"] == 5000
    assert budgets["imagenet/resnet18-brecq/b-adaround-w4"] == 20000
    assert budgets["imagenet/mobilenetv2-torchvision/b-flexround-w4-n32"] == 5000  # of figure 7
    assert budgets["glue-qnli/bert-base/q-flexround-w8a8-tuned"] == 3 * 20000
    assert not any(key.endswith("full-precision") for key in budgets)


# what is compared


def test_templates_pair_rows_of_equal_names() -> None:
    pairs = {(line["recipe"], line["other_recipe"]) for line in shipped("weights-and-activations")}
    names = [(setting, bits) for setting in "bq" for bits in ("w4a4", "w3a3")]
    assert pairs == {(f"{setting}-flexround-{bits}", f"{setting}-adaround-{bits}") for setting, bits in names}


def test_columns_sections_and_metrics_narrow_a_claim_down(tmp_path: Path) -> None:
    assert [line["metric"] for line in judged(tmp_path, claim())] == list(METRICS)
    assert [line["metric"] for line in judged(tmp_path, claim(metrics=["top5"]))] == ["top5"]
    assert [line["metric"] for line in judged(tmp_path, claim(within={"top1": 1}))] == ["top1"]
    near = shipped("glue-near-full-precision")
    assert {line["section"] for line in near} == {"MNLI", "QQP"}
    assert len(near) == 2 * 2 * 4
    assert {line["metric"] for line in shipped("s3-s4")} == {"top1"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"places": ["table 98"]}, r"it: place 'table 98' \(did you mean 'table 99'"),
        ({"pairs": [("strng", "weak")]}, "none of its cells"),
        ({"columns": ["Net_19"]}, "none of its cells"),
        ({"within": {"top1": 1}, "similar": {"top1": 1}}, "only one of them"),
    ],
)
def test_a_claim_about_nothing_is_refused(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        judged(tmp_path, claim(**changes))


# the paper's own side


@pytest.mark.parametrize(
    ("name", "supported", "total"),
    [
        ("s1-learnable", 6, 6),
        ("weights-only", 33, 36),  # ResNet-18 at 3 bit is worse twice, ResNet-50 equal once
        ("insensitive-to-calibration-size", 6, 6),
        ("addition-and-division", 35, 36),
        ("opt-near-full-precision", 6, 6),
    ],
)
def test_what_the_paper_supports_itself(name: str, supported: int, total: int) -> None:
    found = [line["published"] for line in shipped(name)]
    assert (found.count("holds"), len(found)) == (supported, total)


def test_published_margins_of_figure_7() -> None:
    found = {line["one"]: line["published_margin"] for line in shipped("insensitive-to-calibration-size")}
    assert found["B + FlexRound, 32 samples"] == f"{67.17 - 68.11:.2f}"
    first = shipped("any-calibration-size")[0]
    assert (first["one"], first["other"]) == ("B + FlexRound, 1024 samples", "B + AdaRound, 1024 samples")
    assert first["published_margin"] == f"{69.65 - 67.77:.2f}"


@pytest.mark.parametrize("name", specs.load().claims)
def test_every_part_of_a_shipped_claim_compares_something(name: str) -> None:
    one = specs.load().claims[name]
    for pair in one.pairs:
        alone = one.model_copy(update={"pairs": (pair,)})
        assert any(list(alone.matches(paper_places()[place].cells)) for place in one.places), pair
    lines = shipped(name)
    assert set(one.columns) <= {line["column"] for line in lines}
    assert set(one.sections) <= {line["section"] for line in lines}
    assert {*one.metrics, *one.within, *one.similar} <= {line["metric"] for line in lines}


def test_every_table_with_both_rows_is_claimed() -> None:
    claimed = {
        place
        for one in specs.load().claims.values()
        for place in one.places
        if any("flexround" in pair[0] and "adaround" in pair[1] for pair in one.pairs)
    }
    both = {
        f"table {table.number}"
        for table in OF_RUNS.values()
        if {"adaround", "flexround"} <= {part for row in table.rows() for part in row.recipe.split("-")}
    }
    assert both - claimed == {"table 10"}, "whose FlexRound row is compared with itself, equalized"


# the stage


def test_who_made_one_table_gets_the_claims_about_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scores = {"full-precision": hits(990), "q-adaround-w8a8": hits(800), "q-flexround-w8a8": hits(850)}
    fill(tmp_path / "results", OF_RUNS["table12"], scores)
    with contextlib.chdir(tmp_path):
        call("claims", resolve.inputs(Plan(load_params("mini")), "claims"))
    names = ("claims.csv", "errata.csv", "claims.html")
    text, errata, page = ((tmp_path / "results/mini" / name).read_text() for name in names)
    lines = list(csv.DictReader(text.splitlines()))
    assert {line["claim"] for line in lines if line["verdict"] != "not run"} == {"squad"}
    assert [line["verdict"] for line in lines if line["claim"] == "squad"] == ["holds", "holds"]
    void = {(line["place"], line["section"]) for line in lines if not line["published_margin"]}
    assert void == {("table 20", "LLaMA-33B")}, "whose AdaRound row is a copy"
    assert re.search(r"^squad +2 +0 +0 +0$", capsys.readouterr().out, re.MULTILINE)
    counted = r'AdaRound on SQuAD\.[^\n]*own numbers: 2 of 2</span>\s*<span class="badge holds">[^\n]* 2 holds</span>'
    assert re.search(counted, page)
    assert offline(page)
    claims, mistakes = specs.load().claims, errata.splitlines()[1:]
    assert len(mistakes) >= 20
    assert page.count("<details id=") == len(claims)
    assert page.count("<tr>") - page.count("<thead>") == len(lines) + len(mistakes)
    assert "Scale: mini, with its own models and data instead of the paper's; not the paper's numbers." in visible(page)


def test_sizes_of_a_scale_that_the_paper_lacks_have_no_published_margin() -> None:
    params = load_params("mini")
    figures = params.scale.figures.model_copy(update={"sample_sizes": (16,)})
    found, printed = figure7(params._replace(scale=params.scale.model_copy(update={"figures": figures})))
    recipes = {cell.run.recipe for cell in found if cell.key not in printed}
    assert recipes == {"b-flexround-w4-n16", "b-adaround-w4-n16"}
    assert found[0].run == Run("mini", "imagenet", "mobilenetv2-torchvision", "b-adaround-w4-n2048", 0)
