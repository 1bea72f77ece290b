"""Settings: a value is read as it stands, and a mistake in the files or a name says where it is."""

import dataclasses
import math
import shutil

import pydantic
import pytest
import toy
import yaml
from table_runs import loaded

from flexround.errors import SettingsError
from flexround.quant.flexround import FlexRound
from flexround.quant.rtn import RTN
from flexround.settings import load, schema, user_rows, validation
from flexround.settings.layout import PARAMS
from flexround.settings.load import load_params, scale_path
from flexround.settings.plan import Plan
from flexround.settings.validation import read_yaml
from flexround.tools import check

# values


class Dated(schema.Strict):
    revision: str


def test_numbers_and_dates_are_read_as_they_are_meant(tmp_path):
    (tmp_path / "a.yaml").write_text("[1e-3, 2E5, -1e+2, 1.e1, 5, 'é']\n", encoding="utf-8-sig")
    assert read_yaml(tmp_path / "a.yaml") == [1e-3, 2e5, -100.0, 10.0, 5, "é"]
    (tmp_path / "b.yaml").write_text("revision: 2024-01-01\n")
    assert validation.load(Dated, tmp_path / "b.yaml").revision == "2024-01-01"


@pytest.mark.parametrize(
    ("key", "value"),
    [("lr", math.inf), ("lr", True), ("loss_p", 1e300), ("iters", "5"), ("iters", 10**25), ("batch", -1)],
)
def test_no_hyper_parameter_takes_nonsense_for_a_number(key, value):
    with pytest.raises(SettingsError, match=key):
        validation.given(schema.Hyper, toy.HYPER | {key: value}, "file")


@pytest.mark.parametrize("name", ["../x", "a b", "x$(touch y)", "x\n", "", "-x"])
def test_a_name_can_be_part_of_paths_and_commands(name):
    named = pydantic.TypeAdapter(schema.Name)
    assert named.validate_python("resnet18.2_a-b") == "resnet18.2_a-b"
    with pytest.raises(pydantic.ValidationError, match="it becomes part of paths"):
        named.validate_python(name)


# names


@pytest.mark.parametrize(
    ("call", "wrong", "right"),
    [
        (lambda name: loaded("mini").recipe(name), "b-flexruond-w4", "b-flexround-w4"),
        (lambda name: Plan(loaded("mini"), {"scale": "mini", name: 1}), "seed", "seeds"),
        (scale_path, "papr", "paper"),
    ],
)
def test_an_unknown_name_comes_with_the_nearest_known_one(call, wrong, right):
    with pytest.raises(SettingsError) as caught:
        call(wrong)
    assert f"{wrong!r} (did you mean {right!r}? known: " in str(caught.value)


# files


@pytest.fixture
def edit(tmp_path, monkeypatch):
    """Return a function that changes one file of a copy of params/, which is read from then on."""
    root = tmp_path / "params"
    shutil.copytree(PARAMS, root, ignore=shutil.ignore_patterns("networks", "data"))
    monkeypatch.setattr(load, "PARAMS", root)

    def change(name, function):
        content = read_yaml(root / name)
        function(content)
        (root / name).write_text(yaml.safe_dump(content, sort_keys=False))

    return change


def complaints(scale="mini"):
    """Return the lines of the one message that reading the copy raises."""
    with pytest.raises(SettingsError) as caught:
        load_params(scale)
    return str(caught.value).splitlines()


def into(*path, **values):
    """Return a function that updates the mapping at ``path``."""

    def change(content):
        for key in path:
            content = content[key]
        content.update(values)

    return change


def recipe(name, **fields):
    """Return a function that adds a recipe that is wrong in some fields."""
    return into("recipes", **{name: {"setting": "B", "rounding": "flexround", "w_bits": 4} | fields})


MINI, RECIPES, TABLE3 = "scales/mini.yaml", "recipes.yaml", "tables/table03.yaml"
IN_A_FILE = {  # file -> change, the line about it
    MINI: [
        (into(seedz=3), "mini.yaml: seedz: unknown key 'seedz' (did you mean 'seeds'?"),
        (into("checkpoints", "bert-base", "model", fctory="x"), "unknown key 'fctory' (did you mean 'factory'?"),
        (into("hyper", 0, "set", itres=5), "mini.yaml: hyper.0.set: itres: unknown key 'itres' (did you mean 'iters'?"),
        (into("hyper", 1, "set", lr={"v": 1e-3, "s1": -1}), "mini.yaml: hyper.1.set: lr.s1 = -1: "),
        (into(seeds=10**9), "mini.yaml: seeds = 1000000000: "),
        (into("tasks", **{"../x": {"module": "m:T"}}), "mini.yaml: tasks: '../x': of a name use only "),
        (into("checkpoints", "mobilenetv2-brecq", pretrain="squad"), "v2-brecq: give source or pretrain, not "),
    ],
    "mini: options of tasks": [
        (into("tasks", "squad", "options", n_bst=2), "tasks.squad: options: n_bst: unknown key 'n_bst' (did you"),
        (into("tasks", "imagenet", "options", val="2500"), "tasks.imagenet: options: val = '2500': "),
    ],
    RECIPES: [
        (recipe("low", w_bits=1), "recipes.low.w_bits = 1: "),
        (recipe("half", rounding=None), "recipes.half: setting, rounding and w_bits go together"),
    ],
}


@pytest.mark.parametrize("name", IN_A_FILE)
def test_all_mistakes_of_a_file_are_told_together(edit, name):
    for change, _ in IN_A_FILE[name]:
        edit(MINI if name.startswith("mini") else name, change)
    lines = complaints()
    for _, expected in IN_A_FILE[name]:
        assert len([line for line in lines if expected in line]) == 1, (expected, "\n".join(lines))
    assert len(lines) == len(IN_A_FILE[name]), lines


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("seeds: 3\n", "mini.yaml: key given twice: ['seeds']"),
        ("x: !!python/object/apply:os.system ['touch ran']\n", "could not determine a"),
    ],
)
def test_yaml_that_means_nothing_or_runs_code_is_refused(edit, tmp_path, monkeypatch, text, expected):
    monkeypatch.chdir(tmp_path)
    with (load.PARAMS / MINI).open("a") as file:
        file.write(text)
    (first, *rest) = complaints()
    assert expected in first
    assert any("line " in line for line in rest)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("content", [None, "- 1\n"])
def test_a_missing_file_and_one_of_another_kind_are_named(tmp_path, content):
    file = tmp_path / "mine.yaml"
    if content:
        file.write_text(content)
    for call in (lambda: load_params(str(file)), lambda: user_rows.configured("mini", str(file))):
        with pytest.raises(SettingsError, match=f"^{file}"):
            call()


MODULE = """
import torch
from flexround.settings.schema import Count, Strict
class Mine(Strict):
    size: Count = torch.ones(1).numel()
class Task:
    Options = Mine
"""


def test_options_of_ones_own_task_in_a_single_file_are_checked(tmp_path):
    (tmp_path / "beside_torch.py").write_text(MODULE)
    task = "{module: 'beside_torch:Task', options: {size: -1, sise: 1}}"
    (tmp_path / "mine.yaml").write_text(f"name: mine\nextends: mini\ntasks: {{mine: {task}}}\n")
    lines = complaints(str(tmp_path / "mine.yaml"))
    assert [line.partition("options: ")[2][:19] for line in lines] == ["size = -1: Input sh", "sise: unknown key '"]


# across files

ACROSS = [  # file, change, part of the line about it
    (RECIPES, recipe("a", rounding="flexruond"), "recipe a: rounding 'flexruond' (did you mean 'flexround'?"),
    (RECIPES, recipe("b", rounding="nowhere.x:Mine"), "recipe b: 'nowhere.x:Mine': no module 'nowhere.x'"),
    (RECIPES, recipe("c", options={"learn_s": 1}), "recipe c: flexround.quant.flexround:FlexRound: unknown option"),
    (MINI, into("checkpoints", "bert-large", source="bert-lrge"), "bert-large: source 'bert-lrge' (did you mean"),
    (MINI, into("hyper", 1, "when", recipe="b-flexrond-*"), "no recipe fits 'b-flexrond-*' (did you m"),
]
LATER = [  # told once names and code are right
    (MINI, into("gates", 0, metric="accuracy"), "gates: task imagenet gives no metric 'accuracy' (known: top1"),
    (RECIPES, recipe("b-flexround-w4", samples=4), "samples=4 is fewer than batch=32"),
]
BITS = into("groups", 1, "rows", 0, bits="3/4")
LAST = [(TABLE3, BITS, "B + AdaRound: bits = 3/4, its recipe b-adaround-w4a4 has 4/4")]


@pytest.mark.parametrize("together", [ACROSS, LATER, LAST], ids=["names", "rules", "bits"])
def test_mistakes_across_files_are_found_by_a_command(edit, together):
    for name, change, _ in together:
        edit(name, change)
    lines = check.mistakes(load_params("mini"))
    for _, _, expected in together:
        assert [line for line in lines if expected in line], (expected, "\n".join(lines))


@pytest.mark.parametrize("scale", ["mini", "paper", "real", "short", "rehearsal"])
def test_no_shipped_scale_has_mistakes_across_its_files(scale):
    assert check.mistakes(loaded(scale)) == []


# a user's rounding


class Finer(RTN):
    def final_grid(self):
        return dataclasses.replace(self.grid, qmax=2 * self.grid.qmax)


def test_a_rounding_keeps_the_bits_of_its_recipe(tmp_path):
    with pytest.raises(SettingsError, match=r"^layer stem: Finer\.final_grid may change"):
        toy.run(dataclasses.replace(toy.job(toy.recipe(), iters=0), rounding=Finer), tmp_path)


class Forgetful(FlexRound):
    def groups(self):
        return {"a": [self.d1]}


class Cut(RTN):
    def forward(self, weight):
        return super().forward(weight)[1:]


class Writes(RTN):
    def forward(self, weight):
        return weight.mul_(0.5)


@pytest.mark.parametrize("kind", [Cut, Writes])
def test_a_wrong_result_of_a_rounding_is_named_with_its_layer(tmp_path, kind):
    with pytest.raises(SettingsError, match=rf"^layer stem: {kind.__name__}\.forward must"):
        toy.run(dataclasses.replace(toy.job(toy.recipe()), rounding=kind), tmp_path)


def test_a_parameter_outside_all_groups_is_named(tmp_path):
    with pytest.raises(SettingsError, match="Forgetful: groups leave out d2"):
        toy.run(dataclasses.replace(toy.job(toy.recipe()), rounding=Forgetful), tmp_path)
