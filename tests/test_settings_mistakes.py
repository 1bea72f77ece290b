"""Settings: what a mistake in the files or a name says."""

import dataclasses
import shutil

import pytest
import toy
import yaml
from table_runs import loaded

from flexround.errors import SettingsError
from flexround.jobs import runs, tables
from flexround.quant.flexround import FlexRound
from flexround.quant.rounding import Rounding
from flexround.quant.rtn import RTN
from flexround.reconstruct.reconstruction import checked
from flexround.settings import load, user_rows
from flexround.settings.layout import PARAMS, Run
from flexround.settings.load import load_params, scale_path
from flexround.settings.plan import Plan
from flexround.settings.validation import read_yaml
from flexround.tasks import protocol

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
def test_an_unknown_name_is_one_message_with_the_nearest_known_one(call, wrong, right):
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


def copied(kind, known, name, **changes):
    """Return a function that gives a scale something known under another name, too, with changes."""
    return lambda content: content[kind].update({name: content[kind][known] | changes})


def network(name, **changes):
    """Return a function that adds a network whose model is wrong in some fields."""
    return lambda content: content["checkpoints"].update(
        {name: {"model": content["checkpoints"]["resnet18-brecq"]["model"] | changes}}
    )


def trained(task, **values):
    """Return a function that adds a rule of fine-tuning settings."""
    rule = {"when": {"task": task}, "set": values, "source": "a test"}
    return lambda content: content["train"].append(rule)


def without(key):
    """Return a function that takes a fine-tuning setting from every rule."""
    return lambda content: [rule["set"].pop(key, None) for rule in content["train"]]


def gate_without_questions(content):
    """Measure LLaMA's gate without the questions that its metric is of."""
    (rule,) = (rule for rule in content["gates"] if rule["when"] == {"task": "commonsense"})
    rule["options"] = {"shots": []}


MINI, PAPER, RECIPES, TABLE3 = "scales/mini.yaml", "scales/paper.yaml", "recipes.yaml", "tables/table03.yaml"
FIRST_GATE, FIRST_ROW = ("gates", 0), ("groups", 1, "rows", 0)
MISTAKES = {  # by what is read together: file, change, the line about it
    "mini: a file": [
        (MINI, into(seedz=3), "mini.yaml: seedz: unknown key 'seedz' (did you mean 'seeds'?"),
        (MINI, into("checkpoints", "bert-base", "model", fctory="x"), "bert-base.model.fctory: unknown key"),
        (MINI, into("hyper", 0, "when", roundin="x"), "mini.yaml: hyper.0.when = 'roundin': "),
        (MINI, into("figures", sample_sizes=[4, 0]), "mini.yaml: figures.sample_sizes.1 = 0: "),
        (MINI, into(seeds=10**9), "mini.yaml: seeds = 1000000000: "),
        (MINI, into(comparable="no"), "mini.yaml: comparable = 'no': "),
        (MINI, into("resources", "data", runtime=True), "mini.yaml: resources.data.runtime = True: "),
        (MINI, into("resources", "data", threads=10**6), "mini.yaml: resources.data.threads = 1000000: "),
        (MINI, into(*FIRST_GATE, min=98, max=85), "mini.yaml: gates.0: min = 98 is above max = 85; swap them"),
        (MINI, into("gates", 1, min="1"), "mini.yaml: gates.1.min = '1': "),
        (MINI, copied("tasks", "squad", "../x"), "mini.yaml: tasks: '../x': of a name use only "),
        (MINI, copied("checkpoints", "bert-large", "$(touch x)"), "mini.yaml: checkpoints: '$(touch x)': of a name "),
        (MINI, into("checkpoints", "resnet50-brecq", source=None, streamed=True), "brecq: streamed needs a source: "),
        (MINI, into("checkpoints", "mobilenetv2-brecq", pretrain="squad"), "v2-brecq: give source or pretrain, not "),
        (MINI, into("tasks", "imagenet", files="/etc/*"), "mini.yaml: tasks.imagenet.files = '/etc/*': give a relat"),
        (RECIPES, recipe("low", w_bits=1), "recipes.low.w_bits = 1: "),
        (RECIPES, recipe("high", a_bits=9), "recipes.high.a_bits = 9: "),
        (RECIPES, recipe("text", w_bits="4"), "recipes.yaml: recipes.text.w_bits = '4': "),
        (RECIPES, recipe("half", rounding=None), "recipes.half: setting, rounding and w_bits go together"),
        (RECIPES, into("recipes", bits={"a_bits": 4}), "recipes.bits: a_bits needs setting, rounding and w_bits"),
        (RECIPES, recipe("folds", preprocess=["fold"]), "recipes.folds.preprocess.0 = 'fold': "),
        (RECIPES, recipe("x;y"), "recipes.yaml: recipes: 'x;y': of a name use only "),
        ("defaults.yaml", into("hyper", 0, source=""), "defaults.yaml: hyper.0.source = '': "),
        (TABLE3, into(*FIRST_ROW, method="=1+1"), "method = '=1+1': spreadsheets compute what begins with ="),
        ("figures.yaml", into(task=3), "figures.yaml: task: unknown key 'task'"),
        ("sources.yaml", into("resnet18-brecq", sha256="short"), "sources.yaml: resnet18-brecq.sha256 = 'short': "),
    ],
    "mini: tables": [
        ("tables/table04.yaml", into(descriptive=["Dataset"]), "descriptive: one of the headers must be Method"),
        ("tables/table05.yaml", into(descriptive=["Method"]), "descriptive: 1 headers, but the row "),
        ("tables/table13.yaml", into("settings", 0, task="ptb"), "table13.yaml: settings: {'ptb'} not among the table"),
        ("tables/table14.yaml", into(groups=[{"rows": []}]), "table14.yaml: give groups, or tasks and settings"),
        ("tables/table17.yaml", into("settings", 0, setting="epochs"), "table17.yaml: settings.0.setting = 'epochs'"),
        ("tables/table18.yaml", into("settings", 0, recipe=None), ": hyper.KEY needs a recipe"),
    ],
    "mini: names": [
        (MINI, into("hyper", 0, "set", itres=5), "mini: hyper.0.set: itres: unknown key 'itres' (did"),
        (MINI, into("hyper", 0, "set", iters=-5), "mini: hyper.0.set: iters = -5: "),
        (MINI, into("hyper", 0, "set", lr={"v": 1e-3, "s1": -1}), "mini: hyper.0.set: lr.s1 = -1: "),
        ("defaults.yaml", into("hyper", 0, "set", itres=5), "defaults.yaml: hyper.0.set: itres: unknown key"),
        ("defaults.yaml", into("hyper", 3, "set", loss_p=10**6), "defaults.yaml: hyper.3.set: loss_p = 1000000: "),
        (RECIPES, recipe("own", hyper={"itres": 5}), "recipes.yaml: own.hyper: itres: unknown key 'itres'"),
        (MINI, into("hyper", 1, "when", recipe="b-flexrond-*"), "when.recipe: nothing fits; 'b-flexrond-*' (did you m"),
        (MINI, into("hyper", 1, "when", a_bits=5), "hyper.1.when.a_bits: nothing fits; '5'"),
        (RECIPES, recipe("a", rounding="flexruond"), "recipes.yaml: a: rounding 'flexruond' (did you mean 'flexr"),
        (RECIPES, recipe("b", rounding="nowhere.x:Mine"), "b: rounding 'nowhere.x:Mine': no module 'nowhere.x'"),
        (RECIPES, recipe("c", rounding="json.none:Mine"), "c: rounding 'json.none:Mine': no module 'json.none'"),
        (RECIPES, recipe("d", rounding="own_rounding"), "d: rounding 'own_rounding' ("),
        (RECIPES, recipe("e", rounding="own:"), "e: rounding 'own:': write it as package.module:Name"),
        (RECIPES, into("recipes", f={"select": ["cle-b-flexround-w4"]}), "f.select: cle-b-flexround-w4 can't be cho"),
        (RECIPES, into("recipes", g={"select": ["b-rtn-w4", "b-rtn-w3"]}), "g.select: recipes of different bits"),
        (MINI, into("checkpoints", "resnet18-brecq", source=None, pretrain="imagnet"), "brecq: task 'imagnet' (did"),
        (MINI, into("figures", sample_sizes=[1024, 333]), "figures.sample_sizes: recipe 'b-adaround-w4-n333' (did"),
        (MINI, into("figures", sample_sizes=[1024, 333]), "figures.sample_sizes: recipe 'b-flexround-w4-n333' (did"),
        (TABLE3, into(*FIRST_ROW, recipe="b-adaround-w4a5"), "table03.yaml: recipe 'b-adaround-w4a5' (did you mean"),
        ("figures.yaml", into("figures", 0, "panels", 0, recipe="b-flexruond-w4"), "recipe 'b-flexruond-w4' (did"),
    ],
    "mini: a table that is not there": [
        (MINI, into(shows={"tables": "tabel"}), "no params/tables has 'tabel' (did you mean 'table'?"),
    ],
    "mini: a name too few": [
        (MINI, into("checkpoints", model={"factory": "x:y"}), "checkpoints.model.factory: unknown key 'factory' (kno"),
        (MINI, lambda _: None, "checkpoints.model.model: this key is required and missing"),
    ],
    "mini: stages": [
        (MINI, lambda content: content["resources"].pop("tabulate"), "mini: resources.tabulate: this key is required"),
    ],
    "mini: what the rules lack": [
        (MINI, lambda content: content["hyper"][0]["set"].pop("a_lr"), ": a_lr: this key is required"),
    ],
    "mini: code and its options": [
        (MINI, network("n1", factory="nowhere.models:net"), "mini: checkpoints.n1: 'nowhere.models:net': no module"),
        (MINI, network("n2", blocks="flexround.models.resnet:blcks"), "has no 'blcks' (did you mean 'blocks'?"),
        (MINI, network("n3", blocks="resnet"), "checkpoints.n3: 'resnet': write it as package.module:Name"),
        (MINI, network("n4", factory="flexround.models.cifar_resnet:resnet", args={"dept": 2}), "option 'dept' (did"),
        (MINI, network("n5", factory="torch.nothing:net"), "checkpoints.n5: 'torch.nothing:net': no module"),
        (MINI, copied("tasks", "squad", "t1", module="flexround.tasks.squad.task:Squd"), "tasks.t1: 'flexround.tasks."),
        (MINI, copied("tasks", "squad", "t2", module="flexround.tasks.squat:Squad"), "tasks.t2: 'flexround.tasks.squ"),
        (MINI, copied("tasks", "squad", "t3", module="flexround.models.resnet:blocks"), "no class attribute Options"),
        (MINI, into("tasks", "squad", "options", n_bst=2), "tasks.squad: options: n_bst: unknown key 'n_bst' (did you"),
        (MINI, into("tasks", "imagenet", "options", val="2500"), "tasks.imagenet: options: val = '2500': "),
        (MINI, into("tasks", "glue-mnli", "options", heldout=True), "tasks.glue-mnli: options: heldout = True: "),
        (MINI, into("tasks", "wikitext2", "options", name="wikitext3"), "wikitext2: options: name = 'wikitext3': "),
        (MINI, into("tasks", "commonsense", "options", shots=[-1]), "tasks.commonsense: options: shots.0 = -1: "),
        (RECIPES, recipe("r1", options={"learn_s": 1}), "r1: rounding flexround.quant.flexround:FlexRound: unkno"),
        (RECIPES, recipe("r2", rounding="rtn", options={"x": 1}), "r2: rounding flexround.quant.rtn:RTN: unknown opti"),
        (RECIPES, recipe("r3", rounding="flexround.quant.grid:clip"), "r3: rounding 'flexround.quant.grid:clip': is"),
        (RECIPES, recipe("r4", rounding="flexround.quant.flexround:torch"), "flexround:torch': is a module; name"),
        (RECIPES, recipe("r5", rounding="flexround.quant.rounding:Rounding"), "Rounding': has no forward of its own"),
        (RECIPES, recipe("r6", rounding="flexround.quant.grid:Grid"), "grid:Grid': is no subclass of Rounding"),
    ],
    "mini: what rules give networks": [
        (MINI, trained("glue-*", epochs=-1), "mini, train settings of glue-mnli/bert-base and 39 more: epochs = -1"),
        (MINI, trained("glue-*", epoch=1), "more: epoch: unknown key 'epoch' (did you mean 'epochs'?"),
        (MINI, trained("glue-*", crop_padding=1), "crop_padding: unknown key 'crop_padding'"),  # of images
        (MINI, trained("glue-*", warmup=2), "warmup = 2: "),  # epochs of images, a share of texts' steps
        (MINI, trained("webnlg", label_smoothing=-1), "label_smoothing = -1: "),
        (MINI, trained("*-lora", frozen="float16", lora=None), "frozen: float16 needs `lora`"),
    ],
    "mini: patterns that fit singly": [
        (
            MINI,
            into("hyper", 1, "when", recipe="b-flexround-*"),
            "scale mini: hyper.1.when: no recipe has rounding adaround, recipe b-flexround-* together; change one",
        ),
    ],
    "mini: what no rule gives a network": [
        (MINI, without("batch"), "more: batch: this key is required and missing"),
    ],
    "mini: samples fewer than each size of batch": [
        (RECIPES, recipe("few", samples=4), "samples=4 is fewer than batch=16"),
        (RECIPES, recipe("few", samples=4), "samples=4 is fewer than batch=32"),
    ],
    "mini: what a task or network does not give": [
        (MINI, into(*FIRST_GATE, metric="accuracy"), "gates: task imagenet gives no metric 'accuracy' (known: top1"),
        (MINI, into("gates", 1, options={"shot": 0}), "scale mini: gates: shot: unknown key 'shot'"),
        (MINI, gate_without_questions, "gates: task commonsense gives no metric 'arc_easy' (known: ppl, ppl_"),
    ],
    "mini: bits": [
        (TABLE3, into(*FIRST_ROW, bits="3/4"), "B + AdaRound: bits = 3/4, its recipe b-adaround-w4a4 has 4/4"),
    ],
    "paper: sources and tolerances": [
        (TABLE3, into(tolerance={"top1": 0.3}), "table03.yaml: tolerance 'top5' (did you mean 'top1'?"),
        (PAPER, into("checkpoints", "resnet18-brecq", source="resnet18-breck"), "source 'resnet18-breck' (did you mea"),
        (PAPER, into("tasks", "squad", sources=["squat"]), "tasks.squad: source 'squat' (did you mean 'squad'?"),
    ],
    "real: a figure of a table that is not there": [
        ("figures-real.yaml", into("figures", 4, table=99), "table 99, which series 'real' lacks; it has 1, 2, 3, 4"),
    ],
}


def test_what_trains_a_network_that_only_a_figure_shows_is_checked_too(edit):
    def drawn(content):
        content["checkpoints"]["drawn"] = content["checkpoints"]["bert-base"]
        content["train"].append({"when": {"checkpoint": "drawn"}, "set": {"epochs": -1}, "source": "a test"})

    edit(MINI, drawn)
    load_params("mini")
    edit("figures.yaml", into("figures", 2, "panels", 0, checkpoint="drawn"))
    (line,) = complaints()
    assert line.startswith("scale mini, train settings of glue-mrpc/drawn: epochs = -1: ")


@pytest.mark.parametrize("together", MISTAKES)
def test_each_mistake_in_the_files_is_one_line_with_its_place_and_a_way_out(edit, together):
    for name, change, _ in MISTAKES[together]:
        edit(name, change)
    lines = complaints(together.partition(":")[0])
    for _, _, expected in MISTAKES[together]:
        assert len([line for line in lines if expected in line]) == 1, (expected, "\n".join(lines))
    assert len(lines) == len(MISTAKES[together]), lines


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
            into("tasks", "glue-qnli", "options", heldout=0),
            lambda plan: runs.select(plan, run("glue-qnli", "bert-base", "q-flexround-w8a8-tuned")),
            "held-out training data, of which task glue-qnli has no",
        ),
        (
            MINI,
            into("checkpoints", "mobilenetv2-brecq", "model", equalization=None),
            lambda plan: runs.reconstruct(plan, run("imagenet", "mobilenetv2-brecq", "cle-b-flexround-w4")),
            "preprocess: cross_layer_equalization needs model.equalization of the checkpoint",
        ),
        (
            TABLE3,
            into("columns", 0, metrics=["top11"]),
            lambda plan: tables.tabulate(plan, 3),
            "table03.yaml: task imagenet gives no metric 'top11' .did you",
        ),
        (
            "tables/table07.yaml",
            into("columns", 0, metrics=["f1"]),
            lambda plan: tables.tabulate(plan, 7),
            "table07.yaml: task commonsense gives no metric 'f1'",
        ),
    ],
)
def test_what_a_task_or_network_does_not_give_is_told_when_it_is_planned(edit, name, change, planned, expected):
    """Not before: a scale of one's own need not make all runs and tables of the scale that it extends."""
    edit(name, change)
    plan = Plan(load_params("mini"))
    with pytest.raises(SettingsError, match=expected):
        planned(plan)


def test_a_required_recipe_is_named(edit):
    edit("recipes.yaml", lambda content: content["recipes"].pop("full-precision"))
    assert any("recipe full-precision is required" in line for line in complaints())


@pytest.mark.parametrize("hyper", [{"lr": {"v": 1e-3}}, {"schedule": {"v": "none"}}])
def test_a_group_without_learning_rate_or_schedule_is_named_with_its_recipe(tmp_path, hyper):
    job = toy.job(toy.recipe(rounding="adaquant"), **hyper)
    job = dataclasses.replace(job, seed_parts=("imagenet", "resnet18-brecq", "b-mine-w4", 0))
    with pytest.raises(SettingsError) as caught:
        toy.run(job, tmp_path)
    message = str(caught.value)
    assert "\n" not in message
    assert all(part in message for part in ("'s1'", next(iter(hyper)), "b-mine-w4", "AdaQuant")), message


def test_a_rate_for_a_group_that_no_layer_has_is_refused_before_anything_is_read():
    with pytest.raises(SettingsError, match=r"toy/0: lr.nonsense: AdaQuant has no such group, .*known: s1, v"):
        toy.job(toy.recipe(rounding="adaquant"), lr={"v": 1e-3, "s1": 1e-3, "nonsense": 1e-3})


class Cut(Rounding):
    """A rounding whose ``forward`` forgets a row."""

    def forward(self, weight):
        return weight[1:]


class Wide(RTN):
    """A rounding whose codes have another shape than its weight."""

    def codes(self, weight):
        return super().codes(weight).flatten()


class Half(RTN):
    """A rounding in another type."""

    def forward(self, weight):
        return super().forward(weight).half()


class Written(RTN):
    """A rounding that writes on its weight, around the counter of its versions."""

    def forward(self, weight):
        weight.data.div_(self.grid.step)
        return super().forward(weight)


class Listed(FlexRound):
    """A rounding whose groups have no names."""

    def groups(self):
        return [*self.parameters()]


class Computed(FlexRound):
    """A rounding that would learn what is no parameter."""

    def groups(self):
        return {"all": [self.d2.exp()]}


class Forgetful(FlexRound):
    """A rounding whose groups lack a parameter."""

    def groups(self):
        return {"all": [self.d1]}


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Cut, r"forward returns \(.*has shape \("),
        (Wide, r"codes returns \(.*has shape \("),
        (Half, r"forward returns torch.float16, its weight is torch.float32"),
        (Written, "forward changes the weight that it is given"),
        (Listed, "groups returns no lists of nn.Parameter by name"),
        (Computed, "groups returns no lists of nn.Parameter by name"),
        (Forgetful, "groups leaves out d2; put it into one"),
    ],
)
def test_what_a_rounding_must_not_do_is_named_with_its_class_and_layer(tmp_path, kind, message):
    with pytest.raises(SettingsError, match=rf"^layer stem: {kind.__name__}.{message}"):
        toy.run(dataclasses.replace(toy.job(toy.recipe()), rounding=kind), tmp_path)


class Greedy(RTN):
    """A rounding that writes on what its constructor and ``fit`` are given."""

    needs_inputs = True

    def __init__(self, weight, grid, axes):
        super().__init__(weight, dataclasses.replace(grid, step=grid.step.clone()), axes)
        weight.zero_(), grid.step.zero_()

    def fit(self, weight, inputs):
        weight.zero_()


def test_a_rounding_may_write_on_what_its_constructor_and_fit_are_given(tmp_path):
    found = []
    for kind in (RTN, Greedy):
        job = dataclasses.replace(toy.job(toy.recipe(rounding="rtn"), iters=0), rounding=kind)
        found.append(toy.run(job, tmp_path / kind.__name__)[0])
    assert toy.same(*found)


@pytest.mark.parametrize(("kind", "lacks"), [("flexround", "no subclass"), (Rounding, "no forward"), (dict, "no subc")])
def test_what_is_no_rounding_is_refused_by_the_class_itself(kind, lacks):
    with pytest.raises(SettingsError, match=f"^rounding mine: (is|has) {lacks}"):
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
def test_yaml_that_means_nothing_or_runs_code_is_refused_with_its_line(edit, tmp_path, monkeypatch, text, expected):
    monkeypatch.chdir(tmp_path)
    with (load.PARAMS / MINI).open("a") as file:
        file.write(text)
    (first, *rest) = complaints()
    assert expected in first
    assert any("line " in line for line in rest)
    assert not (tmp_path / "ran").exists()


def test_a_file_of_another_kind_and_a_missing_one_are_named(edit, tmp_path):
    with pytest.raises(SettingsError, match=r"none\.yaml: missing"):
        user_rows.configured("mini", str(tmp_path / "none.yaml"))
    (load.PARAMS / "recipes.yaml").write_text("- 1\n")
    (load.PARAMS / "sources.yaml").write_text("just text\n")
    lines = complaints(str(tmp_path / "mine.yaml"))
    assert lines[0] == f"{tmp_path / 'mine.yaml'}: missing"
    assert sum("recipes.yaml = [1]: Input should be an object" in line for line in lines) == 1
    assert sum("sources.yaml = 'just text': Input should be an object" in line for line in lines) == 1
