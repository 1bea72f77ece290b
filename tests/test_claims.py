"""Claims and errata: which cells are compared, verdicts, outcomes, and what is wrong with the published numbers."""

import contextlib
import csv
import dataclasses
import functools
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import yaml
from scipy import stats
from stage_calls import call
from table_runs import METRICS, OF_RUNS, RECIPES, TABLE, complete, figure7, fill, hits, loaded, numbers, scope, write
from visible_text import offline, visible

from flexround.errors import SettingsError
from flexround.jobs import resolve
from flexround.jobs.claims import budgets as planned_budgets
from flexround.results import cells, paper_numbers
from flexround.results.cells import Scope
from flexround.results.claims import errata, specs, verdicts
from flexround.results.claims.verdicts import FAILS, HOLDS, NOISE
from flexround.settings.layout import PARAMS, ROOT, Run
from flexround.settings.plan import Plan
from flexround.settings.validation import validate

PAIR = ("strong", "weak")
N18, N50, TORCH = "ResNet-18", "ResNet-50", "pre-trained model from PyTorch"
SPEC = specs.load()
BOUNDS = specs.Claims(claims={}, examples={}, equal_points=0.5, equal_percent=1)


def claim(pairs: object = (PAIR,), **changes: object) -> specs.Claim:
    value = {"where": "here", "text": "It is so.", "places": ["table 99"], "pairs": pairs}
    return validate(specs.Claim, value | changes, "test")


def _lines(comparisons: list[verdicts.Comparison], budgets: Mapping[str, int] = {}) -> list[dict[str, str]]:
    return list(csv.DictReader(verdicts.to_csv(comparisons, budgets, SPEC).splitlines()))


def judged(root: Path, one: specs.Claim, seeds: int = 1, **budgets: int) -> list[dict[str, str]]:
    """Return the lines of one claim about the made-up table."""
    place = verdicts.Place(cells.collect(TABLE, scope(root, seeds)), numbers(TABLE))
    return _lines(verdicts.compare({"it": one}, {"table 99": place}), budgets)


@functools.cache
def paper_places() -> dict[str, verdicts.Place]:
    """Return the paper's tables and figure 7 without any run."""
    printed, params = paper_numbers.load(), loaded("paper")
    everything = Scope("paper", params.recipes.recipes, 1, Path("nowhere"))
    places = {table.place: verdicts.Place(cells.collect(table, everything), printed) for table in OF_RUNS.values()}
    return places | {"figure 7": verdicts.Place(*figure7(params))}


def shipped(name: str) -> list[dict[str, str]]:
    """Return the comparisons of a shipped claim, by the published numbers alone."""
    return _lines(verdicts.compare({name: SPEC.claims[name]}, paper_places()))


# verdicts


@pytest.mark.parametrize(
    ("changes", "margin", "noise", "p_value", "verdict"),
    [
        ({}, 1.0, 0.5, 0.01, HOLDS),
        ({}, -1.0, 0.5, 0.01, FAILS),
        ({}, 0.4, 0.5, 0.01, NOISE),
        ({}, 0.5, 0.5, 0.01, NOISE),  # not beyond it
        ({}, 1.0, 0.5, 0.06, NOISE),  # the test disagrees
        ({}, 1.0, 0.5, None, HOLDS),  # nothing to test
        ({}, 0.0, 0.0, 1.0, NOISE),  # a tie
        ({}, 9.0, float("inf"), None, NOISE),
        ({"within": {"top1": 2}}, -1.0, 0.5, 0.01, HOLDS),
        ({"within": {"top1": 2}}, -1.0, 0.5, 0.9, HOLDS),  # p is of no difference at all
        ({"within": {"top1": 2}}, -1.8, 0.5, 0.01, NOISE),
        ({"within": {"top1": 2}}, -2.2, 0.5, 0.01, NOISE),
        ({"within": {"top1": 2}}, -2.6, 0.5, 0.01, FAILS),
        ({"similar": {"top1": 0.3}}, -0.1, 0.1, 1.0, HOLDS),
        ({"similar": {"top1": 0.3}}, 0.1, 0.5, 1.0, NOISE),
        ({"similar": {"top1": 0.3}}, -1.0, 0.5, 0.01, FAILS),
    ],
)
def test_verdict(changes: dict[str, object], margin: float, noise: float, p_value: float | None, verdict: str) -> None:
    assert verdicts.judge(claim(**changes), "top1", margin, noise, p_value) == verdict


def test_a_lead_beyond_the_noise_holds_and_its_reverse_does_not_and_budgets_are_named(tmp_path: Path) -> None:
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


def test_budgets_are_those_of_the_settings() -> None:
    budgets = planned_budgets(Plan(loaded("paper")))
    assert budgets["imagenet/resnet18-brecq/b-flexround-w4"] == 5000
    assert budgets["imagenet/resnet18-brecq/b-adaround-w4"] == 20000
    assert budgets["imagenet/mobilenetv2-torchvision/b-flexround-w4-n32"] == 5000  # of figure 7
    assert budgets["glue-qnli/bert-base/q-flexround-w8a8-tuned"] == 3 * 20000
    assert not any(key.endswith("full-precision") for key in budgets)


# outcomes: corrected for the number of comparisons


def outcomes(*values: tuple[str, ...]) -> list[dict[str, str]]:
    columns = ("margin", "noise", "p_value", "metric")
    return verdicts.with_outcomes((dict(zip(columns, each, strict=True)) for each in values), BOUNDS)


def test_p_values_are_adjusted_for_all_lines_that_have_one() -> None:
    found = outcomes(*(("1.00", "0.10", p, "top1") for p in ("0.0050", "0.0300", "", "0.0200", "0.5000")))
    # 0.005 * 4/1; 0.03 * 4/3; none; 0.02 * 4/2; 0.5 * 4/4
    assert [each.get("p_adjusted") for each in found] == ["0.0200", "0.0400", None, "0.0400", "0.5000"]
    apart = "undecided, at most 1.1 points apart"
    assert [each.get("outcome") for each in found] == ["better", "better", None, "better", apart]
    assert verdicts.with_outcomes([{"margin": ""}], BOUNDS) == [{"margin": ""}]


@pytest.mark.parametrize(
    ("margin", "noise", "p", "metric", "outcome"),
    [
        ("-1.00", "0.80", "0.0100", "top1", "worse"),
        ("0.30", "0.10", "0.0010", "top1", "better"),  # within the bound, but there
        ("-0.30", "0.20", "0.0500", "matthews", "equal within 0.5 points"),  # the test disagrees with the interval
        ("-0.31", "0.20", "0.2000", "top1", "undecided, at most 0.6 points apart"),  # the interval reaches -0.51
        ("0.40", "0.60", "0.2000", "perplexity", "equal within 1 %"),
        ("1.00", "1.10", "0.0100", "perplexity", "undecided, at most 2.1 % apart"),  # the test says else
        ("0.00", "", "1.0000", "top1", "undecided"),  # one example has no interval
    ],
)
def test_outcome(margin: str, noise: str, p: str, metric: str, outcome: str) -> None:
    assert outcomes((margin, noise, p, metric))[0]["outcome"] == outcome


@pytest.mark.parametrize(("name", "params"), [("claims.csv", "claims"), ("real-claims.csv", "claims-real")])
def test_published_outcomes_follow_from_the_file_and_scipy(name: str, params: str) -> None:
    lines = list(csv.DictReader((ROOT / "results/reference" / name).read_text().splitlines()))
    assert verdicts.with_outcomes(lines, specs.load(PARAMS / f"{params}.yaml")) == lines
    p, adjusted = ([float(each[name]) for each in lines if each["p_value"]] for name in ("p_value", "p_adjusted"))
    assert adjusted == pytest.approx(list(stats.false_discovery_control(p)), abs=5.1e-5)


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


@pytest.mark.parametrize("bounds", [{"equal_points": 0}, {"equal_points": "half"}, {}])
def test_a_bad_bound_is_refused(tmp_path: Path, bounds: dict[str, object]) -> None:
    path = tmp_path / "claims.yaml"
    path.write_text(yaml.safe_dump({"claims": {}, "examples": {}, "equal_percent": 1, **bounds}))
    with pytest.raises(SettingsError, match=r"claims.yaml: equal_points"):
        specs.load(path)


@pytest.mark.parametrize("name", SPEC.claims)
def test_every_part_of_a_shipped_claim_compares_something(name: str) -> None:
    one = SPEC.claims[name]
    for pair in one.pairs:
        alone = one.model_copy(update={"pairs": (pair,)})
        assert any(list(alone.matches(paper_places()[place].cells)) for place in one.places), pair
    lines = shipped(name)
    assert set(one.columns) <= {line["column"] for line in lines}
    assert set(one.sections) <= {line["section"] for line in lines}
    assert {*one.metrics, *one.within, *one.similar} <= {line["metric"] for line in lines}


@pytest.mark.parametrize(("scale", "least", "unclaimed"), [("paper", 100, {"table 10"}), ("real", 18, set())])
def test_flexround_is_compared_with_adaround_wherever_both_stand(scale: str, least: int, unclaimed: set[str]) -> None:
    """But in table 10, whose FlexRound row is compared with itself, equalized."""
    params, pair = loaded(scale), ("{setting}-flexround-{bits}", "{setting}-adaround-{bits}")
    facing = specs.Claim(where="", text="", places=(), pairs=(pair,))
    everything = Scope(scale, params.recipes.recipes, 1, Path("nowhere"))
    tables = {t.place: cells.collect(t, everything) for t in params.tables.values() if t.groups}
    both = {(cell.run, cell.metric): place for place, of in tables.items() for cell, _ in facing.matches(of)}
    claims = specs.load(params.scale.claims_file).claims.values()
    pairs = [pair for claim in claims for place in claim.places for pair in claim.matches(tables.get(place, []))]
    claimed = {(one.run, one.metric) for one, other in pairs if "adaround" in other.run.recipe}
    assert len(both) >= least
    assert {both[run] for run in both.keys() - claimed} <= unclaimed


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


def test_published_margins_of_figure_7_and_sizes_that_the_paper_lacks() -> None:
    found = {line["one"]: line["published_margin"] for line in shipped("insensitive-to-calibration-size")}
    assert found["B + FlexRound, 32 samples"] == f"{67.17 - 68.11:.2f}"
    first = shipped("any-calibration-size")[0]
    assert (first["one"], first["other"]) == ("B + FlexRound, 1024 samples", "B + AdaRound, 1024 samples")
    assert first["published_margin"] == f"{69.65 - 67.77:.2f}"
    params = loaded("mini")
    figures = params.scale.figures.model_copy(update={"sample_sizes": (16,)})
    found, printed = figure7(params._replace(scale=params.scale.model_copy(update={"figures": figures})))
    recipes = {cell.run.recipe for cell in found if cell.key not in printed}
    assert recipes == {"b-flexround-w4-n16", "b-adaround-w4-n16"}
    assert found[0].run == Run("mini", "imagenet", "mobilenetv2-torchvision", "b-adaround-w4-n2048", 0)


# errata: what the code finds is what a reader found, and nothing else

FOUND = {
    errata.COPY: {(20, 8, "BoolQ", "acc")},
    errata.NOT_BEST: {
        *((1, 4, N18, "top5"), (3, 3, N18, "top5"), (3, 9, N50, "top5")),
        *((8, 4, N50, "top5"), (8, 7, N18, "top5"), (8, 7, N50, "top5")),
        *((9, 3, N18, "top5"), (9, 9, N50, "top5")),
        *((10, 4, TORCH, "top1"), (10, 4, TORCH, "top5")),
        *((11, 10, N50, "top5"), (21, 9, "WinoGrande", "acc")),
    },
    errata.TIE: {
        *((2, 7, N50, "top5"), (15, 9, "BERT-BASE", "acc"), (15, 24, "GPT-Neo-125M", "acc")),
        *((16, 3, "BERT-BASE", "acc"), (16, 6, "BERT-BASE", "acc")),
    },
    errata.WORDS: {
        *((2, 7, N18, "top1"), (2, 7, N18, "top5"), (3, 2, N50, "top1"), (3, 3, N50, "top1"), (11, 10, N50, "top5")),
    },
    errata.ONE_EXAMPLE: {  # 75.49 and 75.25, 85.05 and 84.80 of 408; 92.26 and 92.24 of 5463; 42.20 and 42.00 of 500
        *((4, 9, "GPT-Neo-125M", "acc"), (4, 9, "GPT-Neo-1.3B", "acc")),
        *((15, 21, "GPT-Neo-125M", "acc"), (15, 21, "GPT-Neo-1.3B", "acc")),
        *((16, 3, "BERT-LARGE", "acc"), (21, 3, "OBQA", "acc")),
    },
    errata.TWO_NUMBERS: set(),
}


@functools.cache
def paper() -> errata.Paper:
    found = [cell for name, place in paper_places().items() if name != "figure 7" for cell in place.cells]
    return errata.printed(found, paper_numbers.load(), paper_numbers.load_bold())


@functools.cache
def mistakes() -> list[errata.Erratum]:
    return errata.find(paper(), verdicts.compare(SPEC.claims, paper_places()), SPEC.examples)


def places(found: list[errata.Erratum], kind: str) -> list[tuple[int, int, str, str]]:
    return sorted((key.table, key.row, key.column, key.metric) for _, key, _, _ in (e for e in found if e.kind == kind))


@pytest.mark.parametrize("kind", FOUND)
def test_found_is_what_a_reader_found(kind: str) -> None:
    assert places(mistakes(), kind) == sorted(FOUND[kind])


def test_texts_of_errata_and_the_marks_of_the_tables() -> None:
    texts = {(e.kind, e.key.table, e.key.row, e.key.column, e.key.metric): e.text for e in mistakes()}
    copy = texts[errata.COPY, 20, 8, "BoolQ", "acc"]
    assert "Half-precision in table 7 row 1, table 19 row 7, table 21 row 7" in copy
    assert "B+AdaRound (row 8) has 72.69, which is better" in texts[errata.NOT_BEST, 21, 9, "WinoGrande", "acc"]
    assert "-2.07 against Full-precision" in texts[errata.WORDS, 3, 3, N50, "top1"]
    assert "one of 408 test examples" in texts[errata.ONE_EXAMPLE, 4, 9, "GPT-Neo-125M", "acc"]
    marked = [(table.number, note) for table in OF_RUNS.values() for note in table.errata]
    assert marked, "tables 20 and 21"
    for number, note in marked:
        columns = {e.key.column for e in mistakes() if (e.key.table, e.key.row) == (number, note.row)}
        assert columns & {note.column} if note.column else columns, (number, note)


def test_planted_mistakes_are_found() -> None:
    def planted(table: int, row: int, column: str, value: float) -> errata.Paper:
        keys = [k for k in paper().numbers if (k.table, k.row, k.column) == (table, row, column)]
        assert keys
        return paper()._replace(numbers={**paper().numbers, **dict.fromkeys(keys, value)})

    twice = errata.two_numbers(planted(11, 2, N18, 60.0))
    assert places(list(twice), errata.TWO_NUMBERS) == [(11, 2, N18, "top1"), (11, 2, N18, "top5")]
    lower = errata.bold_marks(planted(5, 3, "OPT-1.3B", 12.67), {})  # AdaRound: 12.66, a perplexity
    assert [key for key in places(list(lower), errata.NOT_BEST) if key[0] == 5] == [(5, 3, "OPT-1.3B", "perplexity")]


def test_equal_rows_of_the_same_runs_are_no_copies() -> None:
    twice = [dataclasses.replace(c, key=c.key._replace(table=99)) for c in paper().cells if c.key.table == 5]
    printed = paper().numbers | {c.key: paper().numbers[c.key._replace(table=5)] for c in twice}
    more = paper()._replace(cells=[*paper().cells, *twice], numbers=printed)
    assert places(list(errata.copied_rows(more)), errata.COPY) == [(20, 8, "BoolQ", "acc")]


# the stage


def test_who_made_one_table_gets_the_claims_about_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scores = {"full-precision": hits(990), "q-adaround-w8a8": hits(800), "q-flexround-w8a8": hits(850)}
    fill(tmp_path / "results", OF_RUNS["table12"], scores)
    with contextlib.chdir(tmp_path):
        call("claims", resolve.inputs(Plan(loaded("mini")), "claims"))
    names = ("claims.csv", "errata.csv", "claims.html")
    text, mistakes, page = ((tmp_path / "results/mini" / name).read_text() for name in names)
    lines = list(csv.DictReader(text.splitlines()))
    assert {line["claim"] for line in lines if line["verdict"] != "not run"} == {"squad"}
    assert [line["verdict"] for line in lines if line["claim"] == "squad"] == ["holds", "holds"]
    void = {(line["place"], line["section"]) for line in lines if not line["published_margin"]}
    assert void == {("table 20", "LLaMA-33B")}, "whose AdaRound row is a copy"
    assert re.search(r"^squad +2 +0 +0 +0$", capsys.readouterr().out, re.MULTILINE)
    counted = r'AdaRound on SQuAD\.[^\n]*own numbers: 2 of 2</span>\s*<span class="badge holds">[^\n]* 2 holds</span>'
    assert re.search(counted, page)
    assert offline(page)
    assert len(mistakes.splitlines()) > 20
    assert page.count("<details id=") == len(SPEC.claims)
    assert page.count("<tr>") - page.count("<thead>") == len(lines) + len(mistakes.splitlines()) - 1
    assert "Scale: mini, with its own models and data instead of the paper's; not the paper's numbers." in visible(page)
