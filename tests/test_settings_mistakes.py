"""Settings: what a mistake in the files or a name says."""

import dataclasses
import shutil

import pytest
import toy
import yaml
from table_runs import loaded

from flexround.errors import SettingsError
from flexround.jobs import runs, tables
from flexround.quant.rounding import Rounding
from flexround.quant.rtn import RTN
from flexround.reconstruct.reconstruction import checked
from flexround.settings import load, user_rows
from flexround.settings.layout import PARAMS, Run
from flexround.settings.load import load_params, scale_path
from flexround.settings.plan import Plan
from flexround.settings.validation import read_yaml
from flexround.tasks import protocol
from flexround.tools import check

# mistakes: names


@pytest.mark.parametrize(
    ("call", "wrong", "right"),
    [
        (lambda name: loaded("mini").recipe(name), "b-flexruond-w4", "b-flexround-w4"),
        (lambda name: loaded("mini").rounding_target(name), "adarond", "adaround"),
        (lambda name: protocol.named(loaded("mini").scale, name), "imagnet", "imagenet"),
        (lambda name: Plan(loaded("mini")).trials("imagenet", name, "b-rtn-w4"), "resnet18-breck", "resnet18-brecq"),
        (lambda name: Plan(loaded("mini"), {"scale": "mini", name: 1}), "seed", "seeds"),
        (scale_path, "papr", "paper"),
    ],
)
def test_an_unknown_name_comes_with_the_nearest_known_one(call, wrong, right):
    with pytest.raises(SettingsError) as caught:
        call(wrong)
    message = str(caught.value)
    assert "\n" not in message
    assert f"{wrong!r} (did you mean {right!r}? known: " in message


# mistakes: files


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


MINE = {"setting": "B", "rounding": "flexround", "w_bits": 4}


def recipe(name, **fields):
    """Return a function that adds a recipe that is wrong in some fields."""
    return into("recipes", **{name: MINE | fields})


def network(name, **changes):
    """Return a function that adds a network whose model is wrong in some fields."""
    return lambda content: content["checkpoints"].update(
        {name: {"model": content["checkpoints"]["resnet18-brecq"]["model"] | changes}}
    )


def trained(task, **values):
    """Return a function that adds a rule of fine-tuning settings."""
    rule = {"when": {"task": task}, "set": values, "source": "a test"}
    return lambda content: content["train"].append(rule)


MINI, RECIPES, TABLE3 = "scales/mini.yaml", "recipes.yaml", "tables/table03.yaml"
FIRST_GATE, FIRST_ROW = ("gates", 0), ("groups", 1, "rows", 0)
IN_A_FILE = {  # file -> change, the line about it
    MINI: [
        (into(seedz=3), "mini.yaml: seedz: unknown key 'seedz' (did you mean 'seeds'?"),
        (into("checkpoints", "bert-base", "model", fctory="x"), "unknown key 'fctory' (did you mean 'factory'?"),
        (into("hyper", 0, "when", roundin="x"), "mini.yaml: hyper.0.when = 'roundin': "),
        (into("hyper", 0, "set", itres=5), "mini.yaml: hyper.0.set: itres: unknown key 'itres' (did you mean 'iters'?"),
        (into("hyper", 1, "set", lr={"v": 1e-3, "s1": -1}), "mini.yaml: hyper.1.set: lr.s1 = -1: "),
        (into(seeds=10**9), "mini.yaml: seeds = 1000000000: "),
        (into(*FIRST_GATE, min=98, max=85), "mini.yaml: gates.0: min = 98 is above max = 85; swap them"),
        (into("tasks", **{"../x": {"module": "m:T"}}), "mini.yaml: tasks: '../x': of a name use only "),
        (into("checkpoints", "mobilenetv2-brecq", pretrain="squad"), "v2-brecq: give source or pretrain, not "),
    ],
    "mini: options of tasks": [
        (into("tasks", "squad", "options", n_bst=2), "tasks.squad: options: n_bst: unknown key 'n_bst' (did you"),
        (into("tasks", "imagenet", "options", val="2500"), "tasks.imagenet: options: val = '2500': "),
    ],
    "mini: series": [(into(shows={"tables": "tabel"}), "shows.tables: 'tabel' (did you mean 'table'?")],
    RECIPES: [
        (recipe("low", w_bits=1), "recipes.low.w_bits = 1: "),
        (recipe("half", rounding=None), "recipes.half: setting, rounding and w_bits go together"),
        (recipe("own", hyper={"itres": 5}), "recipes.yaml: recipes.own.hyper: itres: unknown key 'itres'"),
    ],
    "tables/table05.yaml": [(into(descriptive=["Method"]), "descriptive: 1 headers, but the row ")],
    "figures.yaml": [(into(task=3), "figures.yaml: task: unknown key 'task'")],
    "sources.yaml": [(into("resnet18-brecq", sha256="short"), "sources.yaml: resnet18-brecq.sha256 = 'short': ")],
}


@pytest.mark.parametrize("name", IN_A_FILE)
def test_all_mistakes_of_a_file_are_told_together(edit, name):
    for change, _ in IN_A_FILE[name]:
        edit(MINI if name.startswith("mini") else name, change)
    lines = complaints()
    for _, expected in IN_A_FILE[name]:
        assert len([line for line in lines if expected in line]) == 1, (expected, "\n".join(lines))
    assert len(lines) == len(IN_A_FILE[name]), lines


# mistakes: across files

ACROSS = {  # by what is read together: file, change, part of the line about it
    "names and code": [
        (RECIPES, recipe("a", rounding="flexruond"), "recipe a: rounding 'flexruond' (did you mean 'flexround'?"),
        (RECIPES, recipe("b", rounding="nowhere.x:Mine"), "recipe b: 'nowhere.x:Mine': no module 'nowhere.x'"),
        (RECIPES, recipe("c", options={"learn_s": 1}), "recipe c: flexround.quant.flexround:FlexRound: unknown option"),
        (
            RECIPES,
            recipe("d", rounding="flexround.quant.grid:Grid"),
            "recipe d: rounding flexround.quant.grid:Grid: ",
        ),
        (MINI, into("checkpoints", "bert-large", source="bert-lrge"), "bert-large: source 'bert-lrge' (did you mean"),
        (
            MINI,
            network("n2", blocks="flexround.models.resnet:blcks"),
            "checkpoints.n2: 'flexround.models.resnet:blcks'",
        ),
        (
            MINI,
            network("n4", factory="flexround.models.cifar_resnet:resnet", args={"dept": 2}),
            "unknown option 'dept' (did",
        ),
        (MINI, into("hyper", 1, "when", recipe="b-flexrond-*"), "no recipe fits 'b-flexrond-*' (did you m"),
        (MINI, into("hyper", 2, "when", rounding="adaround", w_bits=8, a_bits=3), "no recipe has all of it"),
    ],
    "what rules give networks": [
        (MINI, trained("glue-*", epoch=1), "more: epoch: unknown key 'epoch' (did you mean 'epochs'?"),
        (MINI, into(*FIRST_GATE, metric="accuracy"), "gates: task imagenet gives no metric 'accuracy' (known: top1"),
        (RECIPES, recipe("b-flexround-w4", samples=4), "samples=4 is fewer than batch=32"),
    ],
    "what rules lack": [(MINI, lambda content: content["hyper"][0]["set"].pop("a_lr"), ": a_lr: this key is required")],
    "bits": [(TABLE3, into(*FIRST_ROW, bits="3/4"), "B + AdaRound: bits = 3/4, its recipe b-adaround-w4a4 has 4/4")],
}


@pytest.mark.parametrize("together", ACROSS)
def test_mistakes_across_files_are_found_by_a_command(edit, together):
    for name, change, _ in ACROSS[together]:
        edit(name, change)
    lines = check.mistakes(load_params("mini"))
    for _, _, expected in ACROSS[together]:
        assert [line for line in lines if expected in line], (expected, "\n".join(lines))


@pytest.mark.parametrize("scale", ["mini", "paper", "real", "short", "rehearsal"])
def test_no_shipped_scale_has_mistakes_across_its_files(scale):
    assert check.mistakes(loaded(scale)) == []


def run(*names):
    return Run("mini", *names, 0)


@pytest.mark.parametrize(
    ("name", "change", "planned", "expected"),
    [
        (
            MINI,
            lambda _: None,
            lambda plan: runs.select(plan, run("imagenet", "mobilenetv2-brecq", "q-flexround-w8a8-tuned")),
            "held-out training data, of which task imagenet has",
        ),
        (
            MINI,
            into("checkpoints", "mobilenetv2-brecq", "model", equalization=None),
            lambda plan: runs.reconstruct(plan, run("imagenet", "mobilenetv2-brecq", "cle-b-flexround-w4")),
            "preprocess: cross_layer_equalization needs model.equalization of the checkpoint",
        ),
        (
            MINI,
            trained("squad", epoch=1),
            lambda plan: runs.finetune(plan, "squad", "bert-base"),
            "train settings of squad/bert-base: epoch: unknown key 'epoch' .did you mean 'epochs'",
        ),
        (
            TABLE3,
            into("columns", 0, metrics=["top11"]),
            lambda plan: tables.tabulate(plan, 3),
            "table03.yaml: task imagenet gives no metric 'top11' .did you",
        ),
    ],
)
def test_what_a_task_or_network_lacks_is_told_in_planning(edit, name, change, planned, expected):
    """Not before: a scale of one's own need not make all runs and tables of the scale that it extends."""
    edit(name, change)
    plan = Plan(load_params("mini"))
    with pytest.raises(SettingsError, match=expected):
        planned(plan)


@pytest.mark.parametrize("hyper", [{"lr": {"v": 1e-3}}, {"schedule": {"v": "none"}}])
def test_a_group_without_rate_or_schedule_is_named(tmp_path, hyper):
    job = toy.job(toy.recipe(rounding="adaquant"), **hyper)
    job = dataclasses.replace(job, seed_parts=("imagenet", "resnet18-brecq", "b-mine-w4", 0))
    with pytest.raises(SettingsError) as caught:
        toy.run(job, tmp_path)
    message = str(caught.value)
    assert "\n" not in message
    assert all(part in message for part in ("'s1'", next(iter(hyper)), "b-mine-w4", "AdaQuant")), message


class Greedy(RTN):
    """A rounding that writes on what its constructor and ``fit`` are given."""

    needs_inputs = True

    def __init__(self, weight, grid, axes):
        super().__init__(weight, dataclasses.replace(grid, step=grid.step.clone()), axes)
        weight.zero_(), grid.step.zero_()

    def fit(self, weight, inputs):
        weight.zero_()


def test_a_rounding_may_write_on_what_it_is_given(tmp_path):
    found = []
    for kind in (RTN, Greedy):
        job = dataclasses.replace(toy.job(toy.recipe(rounding="rtn"), iters=0), rounding=kind)
        found.append(toy.run(job, tmp_path / kind.__name__)[0])
    assert toy.same(*found)


@pytest.mark.parametrize("kind", ["flexround", Rounding, dict])
def test_what_is_no_rounding_is_refused_by_the_class_itself(kind):
    with pytest.raises(SettingsError, match="give a subclass"):
        checked(kind, "mine")


# mistakes: YAML


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("seeds: 3\n", "mini.yaml: key given twice: ['seeds']"),
        ("seeds: [1\n", "mini.yaml: "),
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


@pytest.mark.parametrize("content", [None, "- 1\n", "just text\n"])
def test_a_missing_file_and_one_of_another_kind_are_named(tmp_path, content):
    file = tmp_path / "mine.yaml"
    if content:
        file.write_text(content)
    for call in (lambda: load_params(str(file)), lambda: user_rows.configured("mini", str(file))):
        with pytest.raises(SettingsError, match=f"^{file}"):
            call()
