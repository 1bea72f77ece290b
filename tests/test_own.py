"""A rounding and a network of the user's own, from files outside the project: the documented examples."""

import csv
import importlib
import io
import json
import re
import shutil
import sys

import pytest
import table_runs
import torch
import yaml
from stage_calls import Work
from tensors import randn

from flexround.errors import SettingsError
from flexround.models import blocks as protocol
from flexround.results import cells, frames, grid, paper_numbers, table_csv
from flexround.results.cells import Scope
from flexround.results.render import html, latex, terminal
from flexround.settings import user_rows
from flexround.settings.layout import ROOT, Run
from flexround.settings.load import load_params
from flexround.settings.plan import Plan
from flexround.settings.schema import Recipe
from flexround.tools import check

EXAMPLE = ROOT / "examples/own_rounding"
NUDGE = "b-nudge-w4"


@pytest.fixture(scope="module")
def mini():
    return load_params("mini")


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A directory of the user's with the example in it, on the Python path."""
    for path in EXAMPLE.iterdir():
        shutil.copy(path, tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "my_rounding", raising=False)
    importlib.invalidate_caches()
    return tmp_path


def merged(mini, home, **changes):
    """Return the settings with the example, changed."""
    file = home / "my_rounding.yaml"
    file.write_text(yaml.safe_dump(yaml.safe_load(file.read_text()) | changes))
    return user_rows.merge(mini, file)


def mistakes(mini, home, **changes):
    """Return the lines of the one message about a changed example."""
    with pytest.raises(SettingsError) as caught:
        merged(mini, home, **changes)
    lines = str(caught.value).splitlines()
    assert all(line.startswith(f"{home / 'my_rounding.yaml'}: ") for line in lines)
    return lines


# what is added


def test_an_own_row_competes_and_every_rendering_shows_it(mini, home):
    """The user's row has 930 of 1000 right, every other one 900, and no published numbers or empty brackets."""
    params = merged(mini, home)
    table = params.tables[2]
    scores = {row.recipe: table_runs.hits(930 if row.recipe == NUDGE else 900) for row in table.rows()}
    for run in Plan(params).table_runs(2):
        table_runs.write_run(home / "results", run, scores[run.recipe], table_runs.METRICS)
    found = cells.collect(table, Scope("mini", params.recipes.recipes, 1, home / "results"))
    made = frames.text(table_csv.of_cells(found, paper_numbers.load(), table, params.scale))
    lines = list(csv.DictReader(made.splitlines()))
    own = [line for line in lines if line["recipe"] == NUDGE]
    names = ("row", "method", "bits", "value", "published", "delta", "status")
    assert {tuple(line[key] for key in names) for line in own} == {
        ("11", "B + Nudge", "4/32", "93.00", "", "", "computed")
    }
    assert table.groups[:-1] == mini.tables[2].groups
    assert {line["recipe"] for line in lines if line["best"] == "1"} == {NUDGE}
    assert {line["rival"] for line in lines if line["bits"] == "4/32" and line not in own} == {"B + Nudge"}
    assert {line["rival"] for line in lines if line["bits"] == "3/32"}.isdisjoint({"B + Nudge"})

    shown = (grid.load(io.StringIO(made)), table, params.scale)
    page, tex, text = html.render(*shown), latex.render(*shown), terminal.render(*shown)
    assert all("B + Nudge" in rendering for rendering in (page, tex, text))
    assert "93.00" in tex.partition("B + Nudge")[2].partition("\\\\")[0]
    assert "()" not in page + text
    assert "(/)" not in text


@pytest.mark.parametrize(("scale", "count"), [("mini", 58), ("real", 33)])
def test_a_rounding_like_flexround_has_its_rows_and_settings(home, scale, count):
    project, file = load_params(scale), home / "every_table.yaml"
    params = user_rows.merge(project, file)
    added = 0
    for number, table in project.tables.items():
        rows, like = params.tables[number].rows(), [r for r in table.rows() if "FlexRound" in r.method]
        kept, own = rows[: len(table.rows())], rows[len(table.rows()) :]
        assert kept == table.rows()
        changes = [
            ("flexround", "nudge"),
            ("FlexRound", "Nudge"),
            (" (Ours)", ""),
            (" [s1=Learnable; S2=O; s3, s4=O]", ""),
        ]
        expected = [row.model_dump_json(exclude={"label", "extra"}) for row in like if "AdaQuant" not in row.method]
        for old, new in changes:
            expected = [text.replace(old, new) for text in expected]
        assert [row.model_dump_json(exclude={"label", "extra", "table"}) for row in own] == expected
        added += len(own)
    assert added == count

    plan, before, rules = Plan(params), Plan(project), 0
    for task, checkpoint, name in params.shown():
        if params.recipe(name).setting:
            run, like = (Run(scale, task, checkpoint, key, 0) for key in (name, name.replace("nudge", "flexround")))
            own = {"lr": 1.0e-2} if name != like.recipe and params.recipe(name).w_bits == 2 else {}
            assert plan.hyper(run)[0].model_dump() == before.hyper(like)[0].model_dump() | own
            rules += len(own)
    assert rules


# what is wrong in a file


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"like": "flexruond"}, "roundings.Nudge: like: 'flexruond' (did you mean 'flexround'?"),
        ({"hyper": [{"set": {"lr": -1}, "source": "mine"}]}, "roundings.Nudge.hyper.0.set: lr = -1"),
        (None, "roundings.Nudge: recipes.b-nudge-w4: there is a recipe of this name; choose another"),
    ],
)
def test_a_mistake_in_a_rounding_like_another_is_named(mini, home, change, message):
    own = {"rounding": "my_rounding:Nudge", "like": "flexround"} | (change or {})
    lines = mistakes(mini, home, roundings={"Nudge": own}, **({"recipes": {}, "rows": []} if change else {}))
    assert any(message in line for line in lines), lines


def test_mistakes_of_a_file_are_told_together(mini, home):
    own = {"setting": "B", "rounding": "my_rounding:Nudge", "w_bits": 4}
    lines = mistakes(
        mini, home, recipe={}, rows=[{"table": 2, "recipe": NUDGE}], recipes={"e": own | {"hyper": {"itters": 3}}}
    )
    for text in (
        "recipe: unknown key 'recipe' (did you mean 'recipes'?",
        "rows.0.method: this key is required",
        "recipes.e.hyper: itters: unknown key 'itters' (did you mean 'iters'?",
    ):
        assert any(text in line for line in lines), (text, lines)


# what the command finds


def found(project, home, **changes):
    return check.mistakes(merged(project, home, **changes))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rounding": "my_rounding:Nugde"}, "'my_rounding:Nugde': module 'my_rounding' "),
        ({"rounding": "my_rounding:Needs"}, "my_rounding:Needs: missing a required argument: 'k'"),
        ({"options": {"w": 1}}, "my_rounding:Nudge: unknown option 'w'"),
        ({"hyper": [{"when": {"w_bits": 5}, "set": {}, "source": "mine"}]}, "no w_bits fits '5'"),
    ],
)
def test_the_command_looks_into_the_users_code_and_rules(mini, home, change, message):
    with (home / "my_rounding.py").open("a") as file:
        file.write(
            "\n\nclass Needs(Nudge):\n    def __init__(self, weight, grid, axes, k, b=1, *, c=2):\n        pass\n"
        )
    own = {"rounding": "my_rounding:Nudge", "like": "flexround"} | change
    lines = found(mini, home, roundings={"Nudge": own}, recipes={}, rows=[])
    assert any(message in line for line in lines), lines


def test_a_regularizer_needs_a_weight_that_is_set_if_only_to_0(mini, home):
    module = home / "my_rounding.py"
    module.write_text(f"{module.read_text()}\n    def regularizer(self, beta):\n        return self.v.sum()\n")
    (line,) = found(mini, home)
    assert NUDGE in line
    assert "my_rounding:Nudge has a regularizer, whose weight, reg_weight, is 0 by default" in line
    own = {"setting": "B", "rounding": "my_rounding:Nudge", "w_bits": 4, "hyper": {"reg_weight": 0.0}}
    assert found(mini, home, recipes={NUDGE: own}) == []


def test_a_row_can_not_win_under_bits_that_its_recipe_lacks(mini, home):
    rows = [{"table": 3, "recipe": NUDGE, "method": "Mine", "bits": "4/4"}]
    rows += [{"table": 7, "recipe": NUDGE, "method": "Mine", "section": "LLaMA-33B", "checkpoint": "llama-33b"}]
    wrong = found(mini, home, rows=rows)
    assert [line.partition("Mine: ")[2] for line in wrong] == [
        f"bits = {bits}, its recipe {NUDGE} has 4/32; change one" for bits in ("4/4", "8/8")
    ]


GRIDS = [
    (5, "Per channel", {}, True),
    (5, "Per channel", {"w_granularity": "tensor"}, False),
    (5, "Per channel", {"w_scheme": "asymmetric"}, False),
    (5, "Per channel", {"stem_bits": "low"}, False),
    (7, "Groups of 64", {"w_granularity": "group", "group_size": 64}, True),
    (7, "Groups of 64", {"w_granularity": "group", "group_size": 32}, False),
    (2, "", {"setting": "Q", "a_bits": 4}, True),
    (2, "", {"setting": "B", "a_bits": 4}, True),  # has an output of the first layer in 8 bit, as B in the paper
    (2, "", {"setting": "Q", "a_bits": 4, "stem_output_bits": 8}, False),
    (6, "", {"setting": "Q", "a_bits": 8, "a_granularity": "token"}, False),
]


def test_rows_that_compete_have_equal_grids(home):
    recipes, rows = {}, []
    for place, (number, section, settings, fits) in enumerate(GRIDS):
        keys = {"setting": "B", "w_bits": 4} | {key: settings[key] for key in settings if key in Recipe.model_fields}
        changed = {key: value for key, value in settings.items() if key not in keys}
        name, bits = f"{'fits' if fits else 'other'}-{place}", f"{keys['w_bits']}/{keys.get('a_bits', 32)}"
        recipes[name] = keys | {"rounding": "my_rounding:Nudge", "hyper": changed | {"reg_weight": 0}}
        rows.append({"table": number, "recipe": name, "method": name, "bits": bits, "section": section})
    lines = found(load_params("real"), home, recipes=recipes, rows=rows)
    named = {re.search(r"(fits|other)-\d+", line)[0] for line in lines}
    assert named == {row["method"] for row in rows if row["method"].startswith("other")}


# networks


@pytest.fixture
def squeezenet(monkeypatch):
    """The module of the example network."""
    monkeypatch.syspath_prepend(str(ROOT / "examples/squeezenet"))
    return importlib.import_module("squeezenet")


def test_the_blocks_of_the_example_equal_the_network(squeezenet):
    model = squeezenet.squeezenet().eval()
    blocks, x = squeezenet.blocks(model), randn(2, 3, 32, 32)
    with torch.no_grad():
        assert torch.equal(protocol.run(blocks, x), model(x))
    assert len(blocks) == 10
    held = [id(parameter) for block in blocks for parameter in block.module.parameters()]
    assert held == [id(parameter) for parameter in model.parameters()]


def test_the_example_network_is_trained_quantized_and_evaluated(squeezenet, tmp_path):
    scale = yaml.safe_load((ROOT / "examples/squeezenet/squeezenet.yaml").read_text())
    scale["tasks"]["digits"]["options"] = {"train": 64, "val": 100}
    scale["train"][0]["set"] |= {"epochs": 1}
    scale["gates"] = [{"metric": "top1", "min": 0, "max": 100}]
    scale["hyper"][0]["set"] |= {"samples": 8, "batch": 8, "iters": 1, "a_iters": 1}
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(scale))
    work = Work(tmp_path / "small.yaml", tmp_path)
    run = ("digits", "squeezenet", "b-flexround-w4a4")
    blocks = json.loads((work.quantized(*run) / "record.json").read_text())["blocks"]
    assert len(blocks) == 2 * 10, "weights, then activation steps"
    assert work.metrics(*run)["n_examples"] == {"top1": 100, "top5": 100}


def test_a_scale_file_describes_its_own_unpublished_table(tmp_path):
    plan = Plan(load_params(str(ROOT / "examples/squeezenet/squeezenet.yaml")))
    table = plan.params.tables[1]
    assert (table.name, plan.complete_tables()) == ("squeezenet1", [1])
    for count, run in enumerate(plan.table_runs(1)):
        table_runs.write_run(tmp_path, run, table_runs.hits(900 + count), ["top1"])
    found = cells.collect(table, Scope("squeezenet", plan.params.recipes.recipes, 1, tmp_path))
    text = frames.text(table_csv.of_cells(found, {}, table, plan.scale))
    rows = list(csv.DictReader(text.splitlines()))
    computed = [("Full-precision", "90.00"), ("RTN", "90.10"), ("B + AdaRound", "90.20")]
    assert [(row["method"], row["value"]) for row in rows] == [*computed, ("B + FlexRound (Ours)", "90.30")]
    assert {(row["published"], row["status"]) for row in rows} == {("", "computed")}
    for comparable in (True, False):
        shown = grid.load(io.StringIO(text)), table, plan.scale.model_copy(update={"comparable": comparable})
        assert terminal.render(*shown).startswith("Table squeezenet1: ours. ")
        assert not re.search(r"\((None)?\)", html.render(*shown) + latex.render(*shown) + terminal.render(*shown))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("tables: squeezenet, published", "tables: real, published", "name them by letters that no file in params"),
        ("metrics: [top1]", "metrcs: [top1]", "unknown key 'metrcs' .did you mean 'metrics'"),
    ],
)
def test_a_wrong_table_of_a_scale_file_is_one_message(tmp_path, old, new, message):
    text = (ROOT / "examples/squeezenet/squeezenet.yaml").read_text()
    assert old in text
    file = tmp_path / "mine.yaml"
    file.write_text(text.replace("name: squeezenet", "name: mine", 1).replace(old, new))
    with pytest.raises(SettingsError, match=message):
        load_params(str(file))
