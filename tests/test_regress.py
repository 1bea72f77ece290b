"""Tolerances from spreads worked out by hand, cells that moved, and the stages that make and use a reference."""

import csv
import dataclasses
import json
import math
import re
import shutil
from pathlib import Path

import pytest
import table_runs
from stage_calls import exit_code
from table_runs import SPECS, hits, loaded

from flexround.errors import InputError, SettingsError
from flexround.regress import checked_runs, compare, tolerances
from flexround.regress.compare import Number
from flexround.regress.tolerances import Pool, Spread
from flexround.results import cells, paper_numbers, table_csv
from flexround.results.cells import Scope
from flexround.results.evaluated import Trial
from flexround.results.paper_numbers import Key
from flexround.results.typed_csv import Printed
from flexround.settings.layout import Run, quantized_dir
from flexround.settings.plan import Plan
from flexround.tools import reference, regress

KEY = Key(12, 2, "", "Q + AdaRound", "8/8", "BERT-Base", "f1")
RUN = Run("mini", "squad", "bert-base", "q-adaround-w8a8", 0)
MINI = loaded("mini")
RIGHT = {"full-precision": 900, "q-adaround-w8a8": 700, "q-flexround-w8a8": 740}


@pytest.fixture(autouse=True)
def settings_read_once(monkeypatch):
    for tool in (reference, regress):
        monkeypatch.setattr(tool, "load_params", {"mini": MINI}.__getitem__)


def number(value, n_examples=1000):
    return Number(Printed(value) if value else None, n_examples, RUN)


def moved(found, tolerance=0.5, reference="70.00"):
    return compare.moved({KEY: found}, {KEY: number(reference)}, {KEY: tolerance})


@pytest.mark.parametrize(
    ("value", "n_examples", "reason"),
    [
        *(("70.50", 1000, None), ("69.50", 1000, None)),
        ("70.51", 1000, "70.51, reference 70.00 (+0.51), tolerance 0.50"),
        ("69.49", 1000, "69.49, reference 70.00 (-0.51), tolerance 0.50"),
        ("", 1000, "missing, reference 70.00"),
        ("70.00", 999, "on 999 test examples, reference on 1000"),
    ],
)
def test_a_cell_that_moves_in_either_direction_is_reported_with_its_manifest(value, n_examples, reason):
    found = [regress.report(line, MINI) for line in moved(number(value, n_examples))]
    cell = "table 12, row 2 (Q + AdaRound 8/8), column BERT-Base, f1"
    manifest = "results/mini/quantized/squad/bert-base/q-adaround-w8a8/seed0/manifest.json"
    assert found == ([f"{cell}: {reason}; {manifest}"] if reason else [])
    with pytest.raises(InputError, match=r"lacks number or tolerance of 1 cells.*Q \+ AdaRound"):
        compare.moved({KEY: number(value)}, {}, {})


# tolerances


def test_spreads_are_pooled_over_the_most_alike_cells_that_suffice():
    kinds = [("glue", "Q", "W8", "acc"), ("glue", "Q", "W8", "f1"), ("glue", "B", "W4", "acc")]
    pool = Pool([Spread(kinds[0], 8.0, 4), Spread(kinds[1], 1.0, 2), Spread(kinds[2], 5.0, 1)])
    assert pool.relative(kinds[0], 0) == (pytest.approx(math.sqrt(2)), "glue Q W8 acc (4 df)")
    assert pool.relative(kinds[1], 0) == (pytest.approx(math.sqrt(9 / 6)), "glue Q W8 (6 df)")
    assert pool.relative(kinds[2], 0) == (pytest.approx(math.sqrt(14 / 7)), "glue (7 df)")
    assert pool.relative(("squad", "Q", "W8", "f1"), 0) == (pytest.approx(math.sqrt(2)), "all (7 df)")
    assert Pool([Spread(kinds[0], 8.0, 3)]).relative(kinds[0], 0) is None
    trials = tuple(Trial(Path(), "f1", value, 1.0, 1000) for value in (70.0, 74.0, 78.0))
    cell = cells.Cell(KEY, 1, True, RUN, "f1", 3, trials)
    recipe = MINI.recipe("q-adaround-w8a8")
    found = tolerances.allowed(cell, kinds[0], recipe, pool, Pool([]), True, None)
    assert (found.sd, found.source) == (4.0, "own 3 seeds"), "they are farther apart than those of its kind"
    single, other = dataclasses.replace(cell, trials=trials[:1]), ("llama", "Q", "W8", "f1")
    found = [tolerances.allowed(single, other, recipe, pool, Pool([]), trained, 0.3) for trained in (True, False)]
    assert [line.source for line in found] == ["test set", "pair with its rival"], "not the seeds of other families"


@pytest.mark.parametrize(
    ("trained", "pair", "found"),
    [
        (True, 0.3, (1.4, "test set")),
        (False, 0.3, (0.3, "pair with its rival")),
        (False, 0.0, (0.1, "pair with its rival")),
        (False, 1.5, (1.4, "test set")),
        (False, None, (0.1, "smallest step")),
    ],
)
def test_released_weights_of_one_seed_move_by_no_more_than_a_pair_of_methods_is_known(trained, pair, found):
    assert tolerances.alone(Trial(Path(), "f1", 70.0, 1.4, 1000), trained, pair) == found


def squad(root, counts=RIGHT, seeds=(0,), scale="mini", shown=1):
    """Write the runs of table 12, of each seed with more right answers, and its CSV, of the first seeds."""
    for seed in seeds:
        for checkpoint in ("bert-base", "bert-large"):
            for recipe, count in counts.items():
                if seed == 0 or recipe != "full-precision":
                    run = Run(scale, "squad", checkpoint, recipe, seed)
                    right = dict.fromkeys(("f1", "em"), hits(count + 10 * seed))
                    table_runs.write_arrays(root, run, right, "predictions", stderr=dict.fromkeys(right, 1.4))
    found = cells.collect(SPECS["table12"], Scope(scale, MINI.recipes.recipes, shown, root))
    text = table_csv.to_csv(found, paper_numbers.load(), SPECS["table12"], table_runs.scale())
    (root / scale / "table12.csv").write_text(text)


def made(root, **options):
    """Return the lines of the tolerances by recipe."""
    given = {"results": root, "out": root / "reference", **options}
    reference.run(reference.parser().parse_args([f"--{name}={value}" for name, value in given.items()]))
    lines = csv.DictReader((root / "reference/tolerances.csv").read_text().splitlines())
    return {(line["method"], line["column"]): line for line in lines}


def test_tolerances_are_four_sds_of_a_difference(tmp_path):
    squad(tmp_path, seeds=(0, 1, 2))
    lines = made(tmp_path)
    quantized = lines["Q + AdaRound", "BERT-Base"]  # 70, 71, 72: one point apart
    assert quantized == quantized | {"n_seeds": "3", "sd": "1.00", "source": "seeds: squad Q W8 f1 (8 df)"}
    assert float(quantized["tolerance"]) == pytest.approx(4 * math.sqrt(2), abs=0.01)
    full = lines["Full-precision", "BERT-Base"]  # stderr 1.4
    assert full == full | {"n_seeds": "1", "sd": "1.40", "source": "test set"}
    for path in tmp_path.glob("mini/evaluated/squad/*/q-*/seed[12]/metrics.json"):
        shutil.copytree(path.parents[1] / "seed0", path.parent, dirs_exist_ok=True)
        path.write_text(path.read_text().replace('"seed": 0', f'"seed": {path.parent.name[-1]}'))
    assert made(tmp_path)["Q + AdaRound", "BERT-Base"]["tolerance"] == "0.10", "a test example"


def test_a_table_of_other_evaluations_is_no_reference(tmp_path):
    squad(tmp_path)
    table = tmp_path / "mini/table12.csv"
    table.write_text(table.read_text().replace(",70.00,", ",71.00,"))
    with pytest.raises(InputError, match=r"table12.csv: .* 71.00, its evaluations give 70.00"):
        made(tmp_path)


def test_full_precision_takes_the_spread_of_rounding(tmp_path):
    squad(tmp_path, seeds=(0, 1, 2))
    squad(tmp_path, {recipe: count + 20 for recipe, count in RIGHT.items()}, scale="threads2")
    lines = made(tmp_path, rounding="threads2")
    full = lines["Full-precision", "BERT-Base"]  # two points apart: sd sqrt(2)
    assert full == full | {"sd": "1.41", "tolerance": "8.00", "source": "rounding: squad (6 df)"}
    assert lines["Q + AdaRound", "BERT-Base"]["source"] == "rounding: squad Q W8 f1 (4 df)"


def test_a_cell_that_another_kind_of_cpu_moves_further_gets_a_quarter_more(tmp_path):
    squad(tmp_path, seeds=(0, 1, 2))
    before = made(tmp_path)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    header, *rows = (tmp_path / "mini/table12.csv").read_text().splitlines()
    moved = [row.replace(",70.00,", ",62.00,").replace(",75.00,", ",74.00,") for row in rows if ",f1," in row]
    (elsewhere / "table12.csv").write_text("\n".join([header, *moved[:-1]]) + "\n")
    lines = made(tmp_path, elsewhere=elsewhere)
    changed = {key for key, line in lines.items() if line != before[key]}
    assert changed == {("Q + AdaRound", "BERT-Base"), ("Q + AdaRound", "BERT-Large")}
    for key in changed:
        assert lines[key] == before[key] | {"tolerance": "10.00", "source": "another kind of CPU"}


def test_tables_of_more_seeds_than_the_scale_s_need_the_number_and_no_cell_may_be_missing(tmp_path):
    squad(tmp_path, seeds=(0, 1, 2), shown=3)
    with pytest.raises(InputError, match="3 seeds, expected 1; make the table anew or give --seeds"):
        made(tmp_path)
    assert made(tmp_path, seeds=3)["Q + AdaRound", "BERT-Base"]["n_seeds"] == "3"
    path = tmp_path / "mini/table12.csv"
    path.write_text(path.read_text().replace("75.00", ""))
    with pytest.raises(InputError, match="is missing; a reference holds every cell"):
        made(tmp_path, seeds=3)


# the check


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Make results and their reference, of SQuAD alone."""
    squad(tmp_path, seeds=(0, 1, 2))
    made(tmp_path)
    only = checked_runs.load()
    only = only.model_copy(update={"families": {"squad": only.families["squad"]}})
    monkeypatch.setattr(checked_runs, "load", lambda: only)
    for recipe in ("q-adaround-w8a8", "q-flexround-w8a8"):
        recorded(tmp_path, recipe, 1.0)
    return tmp_path


def recorded(root, recipe, hard, soft=1.0):
    """Write the record of a run whose first block is not learned and whose second one is."""
    directory = root / quantized_dir(Run("mini", "squad", "bert-base", recipe, 0)).removeprefix("results/")
    directory.mkdir(parents=True, exist_ok=True)
    stem, learned = {"block": "stem", "error_hard": 9.0}, {"block": "layer.0", "error_soft": soft, "error_hard": hard}
    (directory / "record.json").write_text(json.dumps({"blocks": [stem, learned]}))


def regressed(root, *flags):
    """Return the exit code of the check."""
    return exit_code(regress, f"--results={root}", f"--reference={root / 'reference'}", *flags)


def evaluated(root, recipe):
    return root / f"mini/evaluated/squad/bert-base/{recipe}/seed0/metrics.json"


def test_runs_of_the_subset_are_compared_both_ways_and_a_missing_one_is_no_skip(place, capsys):
    path = evaluated(place, "q-adaround-w8a8")
    content = json.loads(path.read_text())
    right = content["metrics"]["f1"]
    for delta, code in ((0.0, 0), (5.0, 0), (-5.0, 0), (6.0, 1), (-6.0, 1)):
        content["metrics"]["f1"] = right + delta
        path.write_text(json.dumps(content))
        assert regressed(place) == code
        out = capsys.readouterr().out
        assert f"3 cells of 1 tables compared with the reference, {code} moved" in out
        assert ("q-adaround-w8a8/seed0/manifest.json" in out) == bool(code)
    evaluated(place, "full-precision").unlink()
    assert regressed(place) == 1
    out = capsys.readouterr().out
    assert "table 12, row 1 (Full-precision 32/32), column BERT-Base, f1: missing, reference 90.00; " in out
    assert "results/mini/checkpoints/squad/bert-base/manifest.json" in out


def test_all_compares_the_tables_as_they_are_lost_lines_too(place, capsys):
    path = place / "mini/table12.csv"
    path.write_text(re.sub(".*BERT-Large.*\n", "", path.read_text().replace("74.00", "84.00")))
    assert regressed(place) == 0, "the subset is compared by its runs"
    assert regressed(place, "--all") == 1
    assert "6 cells of 1 tables compared with the reference, 4 moved" in (out := capsys.readouterr().out)
    assert out.count("missing, reference") == 3
    reference = place / "reference/table12.csv"
    reference.write_text(reference.read_text().replace(",mini,", ",big,"))
    with pytest.raises(InputError, match=r"reference: its tables are of the scale big, not of mini; make"):
        regressed(place, "--all")


def test_a_block_whose_budget_was_not_enough_is_reported(place, capsys):
    for hard, soft, code in ((1.3, 1.0, 0), (1.31, 1.0, 1), (math.nan, 1.0, 1), (0.0, 0.0, 0), (1e-9, 0.0, 1)):
        recorded(place, "q-adaround-w8a8", hard, soft)
        assert regressed(place) == code
        assert ("q-adaround-w8a8/seed0, block layer.0: hard error" in capsys.readouterr().out) == bool(code)


# the subset


def test_every_family_has_runs_that_its_tables_show():
    plan, chosen = Plan(MINI), checked_runs.load()
    shown, runs = [set(plan.table_runs(number)) for number in plan.complete_tables()], set(chosen.runs("mini"))
    assert runs <= set().union(*shown)
    assert sum(bool(of_table & runs) for of_table in shown) >= 12
    for name, family in chosen.families.items():
        assert bool(family.runs) == (name != "real"), "another scale's"
        assert all(chosen.family(member.task) == name for member in family.runs)
    assert {chosen.family(run.task) for run in set().union(*shown)} == {chosen.family(run.task) for run in runs}
    assert all(chosen.family(task) for task in loaded("real").scale.tasks), "or a table gets no tolerances"
    with pytest.raises(SettingsError, match="task 'speech' is in no family"):
        chosen.family("speech")
