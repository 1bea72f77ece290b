"""Settings: what a mistake in the files or a name says."""

import dataclasses
import functools
import shutil

import pytest
import yaml

from flexround.errors import SettingsError
from flexround.settings import load
from flexround.settings.layout import PARAMS
from flexround.settings.load import load_params, scale_path
from flexround.settings.plan import Plan
from flexround.settings.schema import Recipe
from flexround.settings.validation import read_yaml
from flexround.tasks import protocol
from flexround.tools import plan

loaded = functools.cache(load_params)


# mistakes: names


def plan_stage(number):
    plan.run(plan.parser().parse_args(["--table", number]))


@pytest.mark.parametrize(
    ("call", "wrong", "right"),
    [
        (lambda name: loaded("mini").recipe(name), "b-flexruond-w4", "b-flexround-w4"),
        (lambda name: loaded("mini").rounding_target(name), "adarond", "adaround"),
        (lambda name: loaded("mini").checkpoint(name), "resnet18-breck", "resnet18-brecq"),
        (lambda name: protocol.named(loaded("mini").scale, name), "imagnet", "imagenet"),
        (lambda name: Plan(loaded("mini")).trials("imagenet", name, "b-rtn-w4"), "resnet18-breck", "resnet18-brecq"),
        (scale_path, "papr", "paper"),
        (plan_stage, "33", "3"),
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
    shutil.copytree(PARAMS, root)
    monkeypatch.setattr(load, "PARAMS", root)

    def change(name, function):
        content = read_yaml(root / name)
        function(content)
        (root / name).write_text(yaml.safe_dump(content, sort_keys=False))

    return change


def write(text, name="scales/mini.yaml"):
    """Append text to one file of the copy."""
    path = load.PARAMS / name
    path.write_text(path.read_text() + text)


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


def first_row(content):
    content["groups"][1]["rows"][0]["recipe"] = "b-adaround-w4a5"


def first_panel(content):
    content["figures"][0]["panels"][0]["recipe"] = "b-flexruond-w4"


MINE = {"setting": "B", "rounding": "flexround", "w_bits": 4}
BITS = ("w_bits", "a_bits")


def mine(**fields):
    """Return a function that adds a recipe that is wrong in some fields."""
    return into("recipes", mine=MINE | fields)


@pytest.mark.parametrize(
    ("name", "change", "expected"),
    [
        ("scales/mini.yaml", into(seedz=3), r"seedz: unknown key 'seedz' (did you mean 'seeds'?"),
        (
            "scales/mini.yaml",
            into("checkpoints", "bert-base", "model", fctory="x"),
            "checkpoints.bert-base.model.fctory: unknown key 'fctory' (did you mean 'factory'?",
        ),
        ("scales/mini.yaml", into("hyper", 0, "set", itres=5), "'itres' (did you mean 'iters'?"),
        ("defaults.yaml", into("hyper", 0, "set", itres=5), "'itres' (did you mean 'iters'?"),
        ("recipes.yaml", into("recipes", mine=MINE | {"hyper": {"itres": 5}}), "'itres' (did you mean 'iters'?"),
        ("scales/mini.yaml", into("hyper", 0, "set", iters=-5), "iters = -5: "),
        ("scales/mini.yaml", into("hyper", 0, "when", roundin="x"), "roundin"),
        (
            "scales/mini.yaml",
            into("hyper", 0, "when", recipe="b-flexrond-*"),
            "hyper.0.when.recipe: nothing fits; 'b-flexrond-*' (did you mean 'b-flexround-",
        ),
        ("scales/mini.yaml", into("hyper", 0, "when", a_bits=5), "hyper.0.when.a_bits: nothing fits; '5'"),
        (
            "recipes.yaml",
            into("recipes", mine=MINE | {"rounding": "flexruond"}),
            "mine: rounding 'flexruond' (did you mean 'flexround'?",
        ),
        (
            "scales/mini.yaml",
            into("checkpoints", "resnet18-brecq", source=None, pretrain="imagnet"),
            "checkpoints.resnet18-brecq: task 'imagnet' (did you mean 'imagenet'?",
        ),
        (
            "scales/paper.yaml",
            into("checkpoints", "resnet18-brecq", source="resnet18-breck"),
            "checkpoints.resnet18-brecq: source 'resnet18-breck' (did you mean 'resnet18-brecq'?",
        ),
        (
            "recipes.yaml",
            into("recipes", mine={"select": ["cle-b-flexround-w4"]}),
            "recipes.yaml: mine.select: cle-b-flexround-w4 can't be chosen",
        ),
        (
            "scales/paper.yaml",
            into("tasks", "squad", sources=["squat"]),
            "tasks.squad: source 'squat' (did you mean 'squad'?",
        ),
        ("tables/table03.yaml", first_row, "recipe 'b-adaround-w4a5' (did you mean 'b-adaround-w4a4'?"),
        (
            "tables/table03.yaml",
            into("groups", 1, "rows", 0, bits="3/4"),
            "B + AdaRound: bits = 3/4, its recipe b-adaround-w4a4 has 4/4",
        ),
        (
            "recipes.yaml",
            into("recipes", mine={"select": ["b-rtn-w4", "b-rtn-w3"]}),
            "mine.select: recipes of different bits",
        ),
        ("figures.yaml", first_panel, "recipe 'b-flexruond-w4' (did you mean 'b-flexround-w4'?"),
        ("scales/mini.yaml", into(shows={"tables": "tabel"}), "no params/tables has 'tabel' (did you mean 'table'?"),
        (
            "figures-real.yaml",
            into("figures", 4, table=9),
            "table 9, which series 'real' lacks; it has 1, 2, 3, 4",
        ),
        ("scales/mini.yaml", into("figures", sample_sizes=[1024, 333]), "recipe 'b-adaround-w4-n333' (did you mean"),
        ("scales/mini.yaml", lambda content: content["hyper"][0]["set"].pop("a_lr"), ": a_lr: this key is required"),
        *(("recipes.yaml", mine(**{field: 9}), f"recipes.mine.{field} = 9: Input should be less") for field in BITS),
        *(("recipes.yaml", mine(**{field: 1}), f"recipes.mine.{field} = 1: Input should be great") for field in BITS),
        ("recipes.yaml", mine(rounding=None), "recipes.mine: setting, rounding and w_bits go together"),
        (
            "recipes.yaml",
            into("recipes", mine={"a_bits": 4}),
            "recipes.mine: a_bits needs setting, rounding and w_bits",
        ),
        ("recipes.yaml", mine(setting="A"), "recipes.mine.setting = 'A': "),
        ("recipes.yaml", mine(preprocess=["fold"]), "recipes.mine.preprocess.0 = 'fold': "),
        *(
            ("recipes.yaml", mine(rounding=rounding), f"mine: rounding {rounding!r}{message}")
            for rounding, message in {
                "nowhere.roundings:Mine": ": no module 'nowhere.roundings'",
                "json.nothing:Mine": ": no module 'json.nothing'",
                "own_rounding": " (",
                "own_rounding:": ": write it as package.module:Name",
            }.items()
        ),
    ],
)
def test_a_mistake_in_a_file_is_named_with_its_place_and_a_way_out(edit, name, change, expected):
    edit(name, change)
    lines = complaints(next((scale for scale in ("paper", "real") if scale in name), "mini"))
    place = name.rpartition("/")[2].removesuffix(".yaml").removeprefix("table0")
    assert any(expected in line and place in line for line in lines), "\n".join(lines[:5])
    assert len({line.partition(expected)[2] for line in lines if expected in line}) == 1
    assert len(lines) <= (2 if "333" in expected else 1), f"{len(lines)} lines for one mistake"


def names_and_bounds(content):
    """Give a scale names and bounds that it can't have."""
    content["tasks"] |= {"../x": content["tasks"]["squad"], "a b": content["tasks"]["squad"]}
    content["checkpoints"]["$(touch x)"] = content["checkpoints"]["bert-base"]
    content["gates"][0] |= {"min": 98, "max": 85}
    content["tasks"]["imagenet"]["files"] = "/etc/*"


MINI = "mini.yaml: "


@pytest.mark.parametrize(
    ("edits", "expected"),
    [
        (
            [
                ("scales/mini.yaml", into(seeds=0, sede=1)),
                ("scales/mini.yaml", into("gates", 0, min="low")),
                ("scales/mini.yaml", into("resources", "data", mem_mb=0)),
            ],
            [
                f"{MINI}seeds = 0: ",
                f"{MINI}sede: unknown key 'sede' (did you mean 'seeds'?",
                f"{MINI}gates.0.min = 'low': ",
                f"{MINI}resources.data.mem_mb = 0: ",
            ],
        ),
        (
            [
                ("scales/mini.yaml", into(seeds=0)),
                ("recipes.yaml", mine(w_bits=1)),
                ("defaults.yaml", into("hyper", 0, source="")),
                ("tables/table03.yaml", into(number="three")),
                ("figures.yaml", into(task=3)),
                ("sources.yaml", into("imagenet", kind="data")),
            ],
            [f"{MINI}seeds", "recipes.mine.w_bits", "hyper.0.source", "table03.yaml: number", "task", "kind"],
        ),
        (
            [("sources.yaml", into(name, sha256="short")) for name in ("imagenet", "resnet18-brecq")],
            [f"{name}.sha256 = 'short'" for name in ("imagenet", "resnet18-brecq")],
        ),
        (
            [
                ("scales/mini.yaml", into("gates", 0, min="1", max=True)),
                ("scales/mini.yaml", into("resources", "data", mem_mb="many", runtime=True)),
                ("scales/mini.yaml", into(description=5, comparable="no", seeds=1.5)),
                ("recipes.yaml", mine(w_bits="4")),
            ],
            [
                *("gates.0.min = ", "gates.0.max = ", "data.mem_mb = ", "data.runtime = "),
                *("description = ", "comparable = ", "seeds = ", "w_bits = "),
            ],
        ),
        (
            [
                ("scales/mini.yaml", names_and_bounds),
                ("recipes.yaml", into("recipes", **{"x;y": MINE})),
                ("tables/table03.yaml", lambda content: content["groups"][1]["rows"][0].update(method="=1+1")),
            ],
            [
                *("tasks: '../x'", "tasks: 'a b'", "'$(touch x)'", "gates.0: min = 98"),
                *("tasks.imagenet.files", "'x;y'", "'=1+1'"),
            ],
        ),
        (
            [
                ("scales/mini.yaml", into("train", 0, "set", epochs=-1, lr="fast")),
                ("scales/mini.yaml", into("hyper", 0, "set", iters=10**14, lr={"v": 1e-3, "s1": -1})),
                ("defaults.yaml", into("hyper", 3, "set", loss_p=10**6)),
            ],
            [
                *("train.0.set: epochs = ", "train.0.set: lr = ", "hyper.0.set: iters = "),
                *("hyper.0.set: lr.s1 = ", "hyper.3.set: loss_p = "),
            ],
        ),
        (
            [
                ("scales/mini.yaml", into(seeds=10**9)),
                ("scales/mini.yaml", into("resources", "data", mem_mb=10**12, threads=10**6, runtime=10**7)),
                ("scales/mini.yaml", into("figures", sample_sizes=[4, 0])),
            ],
            ["seeds = ", "data.mem_mb = ", "data.threads = ", "data.runtime = ", "figures.sample_sizes.1 = "],
        ),
    ],
    ids=["file", "files", "sources", "types", "names", "rules", "numbers"],
)
def test_all_mistakes_are_reported_together(edit, edits, expected):
    for name, change in edits:
        edit(name, change)
    lines = complaints()
    assert len(lines) == len(expected), lines
    assert all(any(text in line for line in lines) for text in expected), lines


def test_fewer_samples_than_a_batch_are_refused_in_readable_lines(edit):
    edit("recipes.yaml", into("recipes", mine=MINE | {"samples": 4}))
    lines = complaints()
    assert len(lines) == 2, "one for each size of batch"
    for line in lines:
        assert "samples=4 is fewer than batch=" in line
        assert "mine" in line
        assert "loss_p" not in line, "all other settings are of no interest"


def test_a_required_recipe_is_named(edit):
    edit("recipes.yaml", lambda content: content["recipes"].pop("full-precision"))
    assert any("recipe full-precision is required" in line for line in complaints())


@pytest.mark.parametrize(
    "hyper",
    [{"lr": {"v": 1e-3}}, {"lr": {"v": 1e-3, "S1": 1e-3}}, {"schedule": {"v": "none"}}],
    ids=["rate", "misspelt", "schedule"],
)
def test_a_group_without_learning_rate_or_schedule_is_named_with_its_recipe(tmp_path, hyper):
    import toy

    job = toy.job(toy.recipe(rounding="adaquant"), **hyper)
    job = dataclasses.replace(job, seed_parts=("imagenet", "resnet18-brecq", "b-mine-w4", 0))
    with pytest.raises(SettingsError) as caught:
        toy.run(job, tmp_path)
    message = str(caught.value)
    assert "\n" not in message
    assert all(part in message for part in ("'s1'", next(iter(hyper)), "b-mine-w4", "AdaQuant")), message


# mistakes: YAML


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("scales/mini.yaml", "seeds: 3\n", "mini.yaml: key given twice: ['seeds']"),
        (
            "recipes.yaml",
            "\n  mine: {setting: B, rounding: rtn, w_bits: 4, w_bits: 2}\n",
            "recipes.yaml: key given twice: ['w_bits']",
        ),
        ("scales/mini.yaml", "seeds: [1\n", "mini.yaml: "),
        *(
            (
                "scales/mini.yaml",
                f"code: !!python/object/{tag}:os.system ['touch ran']\n",
                "could not determine a const",
            )
            for tag in ("apply", "new")
        ),
    ],
)
def test_yaml_that_means_nothing_or_runs_code_is_refused_with_its_line(
    edit, tmp_path, monkeypatch, name, text, expected
):
    monkeypatch.chdir(tmp_path)
    write(text, name)
    (first, *rest) = complaints()
    assert expected in first
    assert any("line " in line for line in rest)
    assert not (tmp_path / "ran").exists()


def test_merge_keys_work(edit):
    write("\n  mine: {<<: &base {setting: B, rounding: rtn, w_bits: 4}, w_bits: 2}\n", "recipes.yaml")
    assert load_params("mini").recipe("mine") == Recipe(setting="B", rounding="rtn", w_bits=2)


@pytest.mark.parametrize("text", ["- 1\n", "just text\n"])
@pytest.mark.parametrize("name", ["scales/mini.yaml", "recipes.yaml", "sources.yaml"])
def test_a_file_of_another_kind_is_refused(edit, name, text):
    (load.PARAMS / name).write_text(text)
    assert any(name in line for line in complaints())


def test_a_missing_file_is_named(tmp_path):
    assert complaints(str(tmp_path / "mine.yaml")) == [f"{tmp_path / 'mine.yaml'}: missing"]
