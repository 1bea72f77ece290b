"""Tables: what is collected, what is bold, and what the CSV says."""

import contextlib
import csv
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from table_runs import OF_RUNS, TABLE, complete, entry, fill, hits, make, write, write_arrays

from flexround.errors import InputError, SettingsError
from flexround.results import cells, evaluated, paper_numbers
from flexround.results.cells import Scope
from flexround.settings.layout import Run
from flexround.settings.schema import Recipe


def test_shipped_tables_are_there() -> None:
    assert [table.number for table in OF_RUNS.values()] == [*range(1, 13), 15, 16, *range(19, 25)]


@pytest.mark.parametrize("name", OF_RUNS)
def test_spec_matches_the_published_numbers_one_to_one(name: str) -> None:
    """But for rows below the paper's, which have none."""
    table = OF_RUNS[name]
    recipes = {row.recipe: Recipe() for group in table.groups for row in group.rows}
    expected = [key for key in paper_numbers.load() if key.table == table.number]
    last = max(key.row for key in expected)
    found = [
        cell.key for cell in cells.collect(table, Scope("none", recipes, 1, Path("nowhere"))) if cell.key.row <= last
    ]
    assert f"table{table.number:02d}" == name
    assert sorted(found) == sorted(expected)
    assert [key.row for key in found] == [key.row for key in expected]  # and in the paper's order
    for group in table.groups:
        assert group.compare == ("full-precision" not in {row.recipe for row in group.rows})


@pytest.mark.parametrize("again", [False, True])
def test_a_published_number_that_stands_twice_is_refused_with_its_line(tmp_path: Path, again: bool) -> None:
    lines = paper_numbers.TABLES.read_text().splitlines(keepends=True)
    (tmp_path / "published.csv").write_text("".join([*lines, lines[-1]] if again else lines))
    message = rf"published\.csv: entry {len(paper_numbers.load()) + 1}: Key\(table=24, .* is there twice; restore"
    with pytest.raises(InputError, match=message) if again else contextlib.nullcontext():
        paper_numbers.load(tmp_path / "published.csv")


@pytest.mark.parametrize("name", OF_RUNS)
def test_recipe_is_what_the_row_says(name: str) -> None:
    full = 16 if name >= "table19" else 32
    names = {"AdaQuant": "adaquant", "AdaRound": "adaround", "FlexRound": "flexround", "CLE": "cle"}
    for row in OF_RUNS[name].rows():
        weights, activations = re.search(r"(?:-w(\d))?(?:a(\d))?(?:-fixed-s1|-no-s3-s4|-tuned)?$", row.recipe).groups()
        assert row.bits in ("", f"{weights or full}/{activations or full}")
        if "Ablation" not in row.method:
            assert {part for word, part in names.items() if word in row.method} == set(names.values()) & set(
                row.recipe.split("-")
            )
        setting = re.search(r"(?:^|-)([bq])-", row.recipe)
        assert setting is None or "Ablation" in row.method or f"{setting[1].upper()}+" in row.method.replace(" ", "")


COMMON_SENSE = {"ARC-e": "arc_easy", "ARC-c": "arc_challenge", "OBQA": "openbookqa", "WikiText2": "ppl"}


def said(number: int, section: str, column: str) -> tuple[str, str, tuple[str, ...] | None]:
    """Return the task, checkpoint and metrics that section and column of a table say; None: they say no metric."""
    section, name = section.lower(), column.lower()
    if number in (4, 12, 15, 16):
        return f"glue-{section.replace('-', '')}" if section else "squad", name, None
    if number == 5:
        return section, name, ("ppl",)
    if number == 6:
        return "webnlg", {"m": "gpt2-medium", "l": "gpt2-large"}[section[-1]], (name,)
    if number in (23, 24):
        return f"{section}-lora", name, ("ppl",)
    suffix = "_5" if number in (20, 22) and name != "wikitext2" else ""
    return "commonsense", section, (COMMON_SENSE.get(column, name) + suffix,)


@pytest.mark.parametrize("number", [4, 5, 6, 7, 12, 15, 16, *range(19, 25)])
def test_cells_show_what_section_and_column_say(number: int) -> None:
    for cell in OF_RUNS[f"table{number:02d}"].cells():
        task, checkpoint, metrics = said(number, cell.row.section, cell.column.name)
        assert (cell.task, cell.checkpoint, cell.metrics) == (task, checkpoint, metrics or cell.metrics)


def test_only_table_16_has_the_tuned_recipe() -> None:
    tuned = [name for name, table in OF_RUNS.items() if "q-flexround-w8a8-tuned" in {r.recipe for r in table.rows()}]
    assert tuned == ["table16"]


def test_all_published_numbers_are_read() -> None:
    numbers = paper_numbers.load()
    assert len(numbers) == 1116
    assert {key.table for key in numbers} == set(range(1, 25))
    assert len(paper_numbers.load_figure7()) == 14


# collecting


def test_nothing_evaluated_is_missing_never_a_number(tmp_path: Path) -> None:
    text = make(tmp_path, comparable=True)
    for line in csv.DictReader(text.splitlines()):
        assert (line["status"], line["value"], line["delta"], line["n_seeds"]) == ("missing", "", "", "0")
        assert line["published"] == "70.00"


def test_median_spread_and_uncertainty(tmp_path: Path) -> None:
    for seed, count in enumerate((700, 760, 710)):
        write(tmp_path, "weak", hits(count), seed)
    found = entry(make(tmp_path, seeds=3), "weak")
    assert (found["value"], found["spread"], found["n_seeds"]) == ("71.00", "6.00", "3")
    assert (found["stderr"], found["n_examples"], found["higher_is_better"]) == ("1.44", "1000", "1")
    assert found["status"] == "computed"


def test_some_seeds_are_partial(tmp_path: Path) -> None:
    write(tmp_path, "weak", hits(700), seed=1)
    write(tmp_path, "weak", hits(700), seed=1, name="big")
    for comparable in (False, True):
        found = entry(make(tmp_path, comparable, seeds=3), "weak")
        assert (found["status"], found["n_seeds"], found["value"], found["spread"]) == ("partial", "1", "70.00", "")


def test_full_precision_needs_one_seed(tmp_path: Path) -> None:
    write(tmp_path, "full", hits(900))
    assert entry(make(tmp_path, seeds=5), "full")["status"] == "computed"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"metrics": {"top1": float("nan"), "top5": 1.0}}, r"metrics\.top1 = nan"),
        ({"stderr": {"top1": float("inf"), "top5": 1.0}}, r"stderr\.top1 = inf"),
        ({"metrics": {"top1": 70.0}}, r"metrics\.top5: missing"),
        ({"metrics": {"top1": None, "top5": 1.0}}, r"metrics\.top1 = None"),
        ({"run": {"scale": "other"}}, "its place is that of"),
        ({"metrics": {"top1": 200.0, "top5": 1.0}}, r"metrics\.top1 = 200\.0, it lies between 0\.0 and 100\.0"),
        ({"metrics": {"top1": -5.0, "top5": 1.0}}, r"metrics\.top1 = -5\.0, it lies between"),
        ({"metrics": {"top1": 70.1, "top5": 70.0}}, r"metrics\.top1 = 70\.1, but predictions.safetensors gives 70\.0"),
        ({"stderr": {"top1": 0.145, "top5": 1.45}}, r"stderr\.top1 = 0\.145, but predictions.safetensors gives 1\.449"),
        ({"stderr": {"top1": -1.4}}, r"stderr\.top1 = -1\.4"),
        ({"n_examples": {"top1": 10000, "top5": 1000}}, r"n_examples\.top1 = 10000, but .* gives 1000"),
        ({"n_examples": {"top1": 0, "top5": 1000}}, r"n_examples\.top1 = 0"),
        ({"n_examples": {"top1": True, "top5": 1000}}, r"n_examples\.top1 = True"),
        ({"n_examples": {"top5": 1000}}, r"n_examples\.top1: missing"),
        ({"higher_is_better": {"top1": False, "top5": True}}, r"higher_is_better\.top1 = False"),
        ({"predictions": {"sha256": "0" * 64}}, rf"predictions\.safetensors: its sha256 is .*, .* says {'0' * 64}"),
        ({"predictions": {}}, r"predictions\.sha256: this key is required"),
        ({"format": 2}, "its format is 2"),
    ],
)
def test_unusable_metrics_are_refused(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    directory = write(tmp_path, "weak", hits(700), **changes)
    with pytest.raises(InputError, match=message) as caught:
        make(tmp_path)
    assert str(caught.value).startswith(f"{directory}/")
    assert "\n" not in str(caught.value)


REPLICATES = np.linspace(30.0, 40.0, 100)
SPREAD = float(REPLICATES.std(ddof=1))


@pytest.mark.parametrize(
    ("value", "stderr", "message"),
    [
        (35.0, SPREAD, ""),
        (35.0, float(REPLICATES.std()), ""),
        (42.0, SPREAD, r"metrics\.matthews = 42\.0, but predictions.safetensors gives 40\.0"),
        (-101.0, SPREAD, r"= -101\.0, it lies between -100\.0 and 100\.0"),
        (35.0, SPREAD / 10, r"stderr\.matthews = 0\.29.*, but predictions.safetensors gives 2\.9"),
    ],
)
def test_resamples_bound_the_value_and_give_its_error(
    tmp_path: Path, value: float, stderr: float, message: str
) -> None:
    run = Run("mini", "glue-cola", "bert-base", "weak", 0)
    changes = {"metrics": {"matthews": value}, "stderr": {"matthews": stderr}}
    write_arrays(tmp_path, run, {"matthews": REPLICATES}, kind="replicates", **changes)
    if not message:
        assert evaluated.read_run(run, tmp_path, ["matthews"])["matthews"].value == value
        return
    with pytest.raises(InputError, match=message):
        evaluated.read_run(run, tmp_path, ["matthews"])


@pytest.mark.parametrize(
    ("count", "stderr", "message"),
    [(9, 2.0, ""), (90, 2.0, r"n_examples\.ppl = 90, but"), (9, 1e300, ""), (9, -1.0, r"stderr\.ppl = -1")],
)
def test_of_bare_predictions_only_the_number_is_compared(
    tmp_path: Path, count: int, stderr: float, message: str
) -> None:
    run = Run("mini", "ptb", "gpt-neo-1.3b", "weak", 0)
    changes = {"metrics": {"ppl": 12.5}, "stderr": {"ppl": stderr}, "n_examples": {"ppl": count}}
    write_arrays(tmp_path, run, {"ppl": np.zeros(9)}, kind="predictions", **changes)
    with pytest.raises(InputError, match=message) if message else contextlib.nullcontext():
        assert evaluated.read_run(run, tmp_path, ["ppl"])["ppl"].n_examples == count


@pytest.mark.parametrize("name", ["predictions.safetensors", "metrics.json"])
def test_a_missing_or_cut_file_of_an_evaluation_is_refused(tmp_path: Path, name: str) -> None:
    path = write(tmp_path, "weak", hits(700)) / name
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(InputError, match=rf"{name}: .*"):
        make(tmp_path)
    path.unlink()
    if name == "predictions.safetensors":
        with pytest.raises(InputError, match=rf"{name}: missing although"):
            make(tmp_path)


def test_permuted_scores_are_refused_by_their_hash(tmp_path: Path) -> None:
    """Their mean is the same, a paired p-value isn't."""
    path = write(tmp_path, "weak", hits(700)) / "predictions.safetensors"
    save_file({f"scores/{metric}": np.roll(hits(700), 500) for metric in ("top1", "top5")}, path)
    with pytest.raises(InputError, match=r"predictions\.safetensors: its sha256 is"):
        make(tmp_path)


def test_seeds_on_different_test_sets_are_refused(tmp_path: Path) -> None:
    write(tmp_path, "weak", hits(700))
    write(tmp_path, "weak", hits(70, 100), seed=1)
    with pytest.raises(InputError, match=r"\[100, 1000\] examples"):
        make(tmp_path, seeds=2)


def test_unknown_recipe_and_missing_tolerance_are_settings_errors(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="recipe 'bare'"):
        cells.collect(TABLE, Scope("mini", {}, 1, tmp_path))
    bare = TABLE.model_copy(update={"tolerance": {"top1": 0.3}})
    with pytest.raises(SettingsError, match="tolerance 'top5'"):
        make(tmp_path, table=bare)


# the noise rule


@pytest.mark.parametrize(
    ("strong", "bold"),
    [
        (hits(740), True),  # 40 examples gained, none lost: the paired error is 0.62 points
        (hits(703), False),  # 3 gained, none lost: inside the noise
        (hits(705), False),  # 5 gained, none lost: 1.96 paired errors are 0.44 points, but p = 2 / 2^5
        (hits(706), True),  # 6 gained, none lost
        (hits(700), False),  # a tie
        (np.roll(hits(740), 500), False),  # the same margin, but 760 examples flipped
    ],
    ids=["clear", "inside the noise", "too few differ", "just enough differ", "tie", "unstable"],
)
def test_bold_needs_more_than_the_paired_noise(tmp_path: Path, strong: np.ndarray, bold: bool) -> None:
    runs = {"bare": hits(500), "full": hits(900), "weak": hits(700), "strong": strong, "third": hits(100)}
    for recipe, scores in runs.items():
        write(tmp_path, recipe, scores)
    text = make(tmp_path)
    assert entry(text, "strong")["best"] == str(int(bold))
    assert {entry(text, other)["best"] for other in runs if other != "strong"} == {"0"}  # also not of the references


def test_without_scores_the_unpaired_error_decides(tmp_path: Path) -> None:
    for recipe, count in (("weak", 700), ("strong", 730), ("third", 100)):
        write(tmp_path, recipe, hits(count), kind="predictions")
    assert entry(make(tmp_path), "strong")["best"] == "0"  # 3 points against 1.96 x 2.02
    shutil.rmtree(tmp_path / "mini")
    for recipe, count in (("weak", 700), ("strong", 745), ("third", 100)):
        write(tmp_path, recipe, hits(count), kind="predictions")
    assert entry(make(tmp_path), "strong")["best"] == "1"


@pytest.mark.parametrize(("last", "bold"), [(690, "1"), (640, "0")])
def test_seed_spread_is_noise_too(tmp_path: Path, last: int, bold: str) -> None:
    for seed, weak in enumerate((700, 700, last)):
        write(tmp_path, "weak", hits(weak), seed)
        write(tmp_path, "strong", hits(740), seed)
        write(tmp_path, "third", hits(100), seed)
    assert entry(make(tmp_path, seeds=3), "strong")["best"] == bold


def test_the_lead_over_seeds_is_the_mean_that_is_tested(tmp_path: Path) -> None:
    for seed, strong in enumerate((731, 731, 630)):
        write(tmp_path, "weak", hits(730), seed)
        write(tmp_path, "strong", hits(strong), seed)
        write(tmp_path, "third", hits(100), seed)
    found = make(tmp_path, seeds=3)
    strong, weak = entry(found, "strong"), entry(found, "weak")
    assert (strong["value"], strong["lead"], weak["lead"]) == ("73.10", "-3.27", "3.27")
    assert strong["best"] == weak["best"] == "0"


def test_no_winner_while_a_rival_is_missing_or_partial(tmp_path: Path) -> None:
    write(tmp_path, "weak", hits(700))
    write(tmp_path, "strong", hits(740))
    assert entry(make(tmp_path), "strong")["best"] == "0"
    write(tmp_path, "third", hits(100))
    assert entry(make(tmp_path), "strong")["best"] == "1"
    assert entry(make(tmp_path, seeds=2), "strong")["best"] == "0"


def test_the_lower_perplexity_wins_in_table_5(tmp_path: Path) -> None:
    scores = {"full-precision": hits(100), "q-adaround-w8a8": hits(300), "q-flexround-w8a8": hits(200)}
    text = fill(tmp_path, OF_RUNS["table05"], scores)
    found = list(csv.DictReader(text.splitlines()))
    assert {(line["recipe"], line["best"], line["rival"], line["lead"]) for line in found} == {
        ("full-precision", "0", "", ""),
        ("q-adaround-w8a8", "0", "Q+FlexRound (Ours)", "10.00"),
        ("q-flexround-w8a8", "1", "Q+AdaRound", "-10.00"),
    }
    assert {(line["metric"], line["higher_is_better"]) for line in found} == {("perplexity", "0")}


def test_each_column_of_table_6_has_its_own_metric(tmp_path: Path) -> None:
    scores = {"full-precision": hits(900), "q-adaround-w8a8": hits(700), "q-flexround-w8a8": hits(800)}
    fill(tmp_path, OF_RUNS["table06"], scores)
    run = Run("mini", "webnlg", "gpt2-large", "full-precision", 0)
    shutil.rmtree(evaluated.directory(run, tmp_path))
    three = {name: np.full(10, value) for name, value in (("unseen", 0.01), ("seen", 0.03), ("all", 0.02))}
    write_arrays(tmp_path, run, three)
    found = cells.collect(OF_RUNS["table06"], Scope("mini", dict.fromkeys(scores, Recipe()), 1, tmp_path))
    values = {cell.key.column: cell.median for cell in found if cell.key.row == 4}
    assert values == {"Unseen": 1.0, "Seen": 3.0, "All": 2.0}
    assert {cell.key.metric for cell in found} == {"bleu"}


# the CSV


@pytest.mark.parametrize(
    ("count", "value", "expected"),
    [
        (700, 70.0, "reproduced"),
        (700, 70.3, "reproduced"),
        (604, 60.7, "reproduced"),  # 60.4 - 60.7 is a little beyond -0.3 in floating point
        (700, 70.31, "close"),
        (700, 69.1, "close"),
        (700, 69.09, "off"),
    ],
)
def test_status_follows_the_tolerance(tmp_path: Path, count: int, value: float, expected: str) -> None:
    write(tmp_path, "weak", hits(count), name="big")
    found = entry(make(tmp_path, comparable=True, value=value), "weak")
    assert found["status"] == expected
    assert float(found["delta"]) == round(float(found["value"]) - value, 2)


def test_a_scale_of_its_own_never_shows_delta(tmp_path: Path) -> None:
    complete(tmp_path)
    text = make(tmp_path)
    assert {(line["delta"], line["status"]) for line in csv.DictReader(text.splitlines())} == {("", "computed")}


def test_csv_is_byte_stable_with_the_agreed_columns(tmp_path: Path) -> None:
    complete(tmp_path)
    text = make(tmp_path)
    assert text == make(tmp_path)
    assert text.splitlines()[0] == (
        "table,row,section,method,bits,column,metric,value,spread,n_seeds,n_examples,stderr,higher_is_better,"
        "published,delta,status,scale,task,checkpoint,recipe,group,best,rival,lead,lead_stderr,p_value"
    )
    assert text.splitlines()[7] == (
        "99,4,,B + Strong,4/32,Net_18,top1,74.00,,1,1000,1.39,1,70.00,,computed,mini,imagenet,net,strong,2,1,"
        "B + Weak,4.00,0.62,0.0000"
    )
    assert "\r" not in text
    assert text.endswith("\n")
    assert len(text.splitlines()) == 1 + 10
