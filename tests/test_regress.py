"""Tolerances of new cells, cells that moved, and the tools that make and use a reference."""

import csv
import json
import math
import re

import pytest
import table_runs
from stage_calls import exit_code
from table_runs import SPECS, hits, loaded

from flexround.errors import InputError
from flexround.regress import checked_runs, tolerances
from flexround.results import cells, frames, paper_numbers, published_results, table_csv
from flexround.results.cells import Scope
from flexround.results.grid import Entry
from flexround.results.paper_numbers import Key
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
    """Return a cell of table 12."""
    facts = KEY._asdict() | vars(RUN) | {"group": 1, "best": 0, "value": value, "n_examples": str(n_examples)}
    (made,) = frames.lines(frames.made([facts], Entry._fields), Entry)
    return made


def moved(found, tolerance=0.5, reference="70.00"):
    return tolerances.moved([found], [number(reference)], {KEY: tolerance})


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
def test_a_cell_that_moves_is_reported_with_its_manifest(value, n_examples, reason):
    found = [regress.report(line, MINI) for line in moved(number(value, n_examples))]
    cell = "table 12, row 2 (Q + AdaRound 8/8), column BERT-Base, f1"
    manifest = "results/mini/quantized/squad/bert-base/q-adaround-w8a8/seed0/manifest.json"
    assert found == ([f"{cell}: {reason}; {manifest}"] if reason else [])
    with pytest.raises(InputError, match=r"lacks number or tolerance of 1 cells.*Q \+ AdaRound"):
        tolerances.moved([number(value)], [], {})


# tolerances


@pytest.mark.parametrize(
    ("changes", "trained", "sd", "source"),
    [
        ({}, True, 1.4, "test set"),
        ({}, False, 0.3, "pair with its rival"),
        ({"lead_stderr": ""}, False, 0.1, "pair with its rival"),
        ({"lead_stderr": "1.50"}, False, 1.4, "pair with its rival"),
        ({"n_seeds": "3"}, True, 2.0, "own 3 seeds"),
        ({"n_examples": ""}, True, 0.0, "setting"),
    ],
)
def test_a_new_cell_gets_a_tolerance(entry, changes, trained, sd, source):
    line = tolerances.of_new(entry._replace(**changes), trained)
    assert (line.sd, line.source) == (sd, source)
    assert line.tolerance == pytest.approx(4 * math.sqrt(2) * sd, abs=0.01)


@pytest.fixture
def entry(tmp_path):
    squad(tmp_path)
    made = frames.load(tmp_path / "mini/table12.csv", Entry)[1]
    return made._replace(n_seeds="1", spread="4.00", stderr="1.40", lead_stderr="0.30")


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
    text = frames.text(table_csv.of_cells(found, paper_numbers.load(), SPECS["table12"], table_runs.scale()))
    (root / scale / "table12.csv").write_text(text)


def made(root, **options):
    """Return the lines of the tolerances by recipe."""
    given = {"results": root, "out": root / "reference", **options}
    reference.run(reference.parser().parse_args([f"--{name}={value}" for name, value in given.items()]))
    lines = csv.DictReader((root / "reference/tolerances.csv").read_text().splitlines())
    return {(line["method"], line["column"]): line for line in lines}


def test_a_known_tolerance_stays(tmp_path):
    squad(tmp_path)
    made(tmp_path)
    path = tmp_path / "reference/tolerances.csv"
    known = re.sub(",test set", ",seeds", path.read_text()) + "99,1,,RTN,,Net,acc,1,0.10,0.57,test set\n"
    path.write_text(known.replace("12,2,", "12,7,"))
    made(tmp_path)
    assert path.read_text() == known


def test_a_table_of_other_evaluations_is_no_reference(tmp_path):
    squad(tmp_path)
    table = tmp_path / "mini/table12.csv"
    table.write_text(table.read_text().replace(",70.00,", ",71.00,"))
    with pytest.raises(InputError, match=r"table12.csv: .* 71.00, its evaluations give 70.00"):
        made(tmp_path)


def test_a_reference_says_when_and_where_it_was_made(tmp_path):
    results = tmp_path / "results"
    squad(results)
    facts = {"commit": "c" * 40, "date": "2026-11-28", "processor": "Xeon", "simd": "AVX512", "device": "CPU x86_64"}
    for path in results.glob("mini/evaluated/*/*/*/*/metrics.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"environment": facts}))
    made(results)
    expected = {"command": "make results/table12.csv SCALE=mini", "date": ["2026-11-28"], "machine": ["Xeon (AVX512)"]}
    assert published_results.made(tmp_path, MINI.scale) == {"table12": expected | {"commit": ["c" * 40]}}
    path.write_text(json.dumps(json.loads(path.read_text()) | {"environment": {"device": "CPU x86_64"}}))
    made(results)
    assert published_results.made(tmp_path, MINI.scale)["table12"]["commit"] == ["c" * 40, "unknown"]


def test_a_cell_that_another_cpu_moves_gets_a_quarter_more(tmp_path):
    squad(tmp_path)
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


def test_a_reference_has_every_cell(tmp_path):
    squad(tmp_path, seeds=(0, 1, 2), shown=3)
    assert made(tmp_path)["Q + AdaRound", "BERT-Base"]["n_seeds"] == "3"
    path = tmp_path / "mini/table12.csv"
    path.write_text(path.read_text().replace("75.00", ""))
    with pytest.raises(InputError, match="is missing; a reference holds every cell"):
        made(tmp_path)


# the check


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Make results and their reference, of SQuAD alone."""
    squad(tmp_path)
    made(tmp_path)
    only = [network for network in checked_runs.load().networks if network.task == "squad"]
    monkeypatch.setattr(checked_runs, "load", lambda: checked_runs.Subset(networks=only))
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


def test_runs_of_the_subset_are_compared_both_ways(place, capsys):
    path = evaluated(place, "q-adaround-w8a8")
    content = json.loads(path.read_text())
    right = content["metrics"]["f1"]
    for delta, code in ((0.0, 0), (7.0, 0), (-7.0, 0), (8.0, 1), (-8.0, 1)):
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


def test_the_subset_is_shown_by_most_tables():
    plan, runs = Plan(MINI), set(checked_runs.load().runs("mini"))
    shown = [set(plan.table_runs(number)) for number in plan.complete_tables()]
    assert runs <= set().union(*shown)
    assert sum(bool(of_table & runs) for of_table in shown) >= 12
