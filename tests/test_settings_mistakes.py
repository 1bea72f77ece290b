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
    content["shifts"][3][0]["recipe"] = "b-flexruond-w4"


MINE = {"setting": "B", "rounding": "flexround", "w_bits": 4}


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
        ("recipes.yaml", into("recipes", mine=MINE | {"hyper": {"iters": -5}}), "iters = -5: "),
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
        ("figures-real.yaml", into("by_bits", table=9), "shows table 9, which series 'real' lacks; it has 1, 2, 3, 4"),
        ("scales/mini.yaml", into("figures", sample_sizes=[1024, 333]), "recipe 'b-adaround-w4-n333' (did you mean"),
    ],
)
def test_a_mistake_in_a_file_is_named_with_its_place_and_a_way_out(edit, name, change, expected):
    edit(name, change)
    lines = complaints(next((scale for scale in ("paper", "real") if scale in name), "mini"))
    place = name.rpartition("/")[2].removesuffix(".yaml").removeprefix("table0")
    assert any(expected in line and place in line for line in lines), "\n".join(lines[:5])
    assert len({line.partition(expected)[2] for line in lines if expected in line}) == 1
    assert len(lines) <= (2 if "333" in expected else 1), f"{len(lines)} lines for one mistake"


def test_all_mistakes_of_a_file_are_reported_together(edit):
    edit("scales/mini.yaml", into(seeds=0, sede=1))
    edit("scales/mini.yaml", into("gates", 0, min="low"))
    edit("scales/mini.yaml", into("resources", "data", mem_mb=0))
    lines = complaints()
    path = str(load.PARAMS / "scales/mini.yaml")
    assert len(lines) == 4
    assert all(line.startswith(f"{path}: ") for line in lines)
    for start in (
        "seeds = 0: ",
        "sede: unknown key 'sede' (did you mean 'seeds'?",
        "gates.0.min = 'low': ",
        "resources.data.mem_mb = 0: ",
    ):
        assert any(line.startswith(f"{path}: {start}") for line in lines), start


def test_mistakes_of_several_files_are_reported_together(edit):
    edit("scales/mini.yaml", into(seeds=0))
    edit("recipes.yaml", into("recipes", mine=MINE | {"w_bits": 1}))
    edit("defaults.yaml", into("hyper", 0, source=""))
    edit("tables/table03.yaml", into(number="three"))
    edit("figures.yaml", into(task=3))
    edit("sources.yaml", into("imagenet", kind="data"))
    places = ("mini.yaml: seeds", "recipes.mine.w_bits", "hyper.0.source", "table03.yaml: number", "task", "kind")
    lines = complaints()
    assert len(lines) == len(places)
    assert all(any(place in line for line in lines) for place in places)


def test_all_wrong_sources_are_reported_together(edit):
    for name in ("imagenet", "resnet18-brecq"):
        edit("sources.yaml", into(name, sha256="short"))
    lines = complaints()
    assert [name for name in ("imagenet", "resnet18-brecq") if any(name in line for line in lines)] == [
        "imagenet",
        "resnet18-brecq",
    ]
    assert all("sha256 = 'short'" in line for line in lines)


@pytest.mark.parametrize("bits", [0, 1, 9])
@pytest.mark.parametrize("field", ["w_bits", "a_bits"])
def test_impossible_bits_are_refused(edit, field, bits):
    edit("recipes.yaml", into("recipes", mine=MINE | {field: bits}))
    (line,) = complaints()
    assert f"recipes.yaml: recipes.mine.{field} = {bits}: " in line
    assert "8" in line if bits == 9 else "2" in line


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"setting": "B", "w_bits": 4}, "setting, rounding and w_bits go together"),
        ({"setting": "B", "rounding": "flexround"}, "setting, rounding and w_bits go together"),
        ({"rounding": "flexround", "w_bits": 4}, "setting, rounding and w_bits go together"),
        ({"a_bits": 4}, "a_bits needs setting, rounding and w_bits"),
        (MINE | {"setting": "A"}, "recipes.mine.setting = 'A': "),
        (MINE | {"preprocess": ["fold"]}, "recipes.mine.preprocess.0 = 'fold': "),
        (MINE | {"samples": 0}, "recipes.mine.samples = 0: "),
    ],
)
def test_half_a_recipe_is_refused(edit, fields, expected):
    edit("recipes.yaml", into("recipes", mine=fields))
    (line,) = complaints()
    assert expected in line
    assert "recipes.yaml: recipes.mine" in line


def test_fewer_samples_than_a_batch_are_refused_in_readable_lines(edit):
    edit("recipes.yaml", into("recipes", mine=MINE | {"samples": 4}))
    lines = complaints()
    assert len(lines) == 2, "one for each size of batch"
    for line in lines:
        assert "samples=4 is fewer than batch=" in line
        assert "mine" in line
        assert "loss_p" not in line, "all other settings are of no interest"


def test_a_missing_hyper_parameter_is_one_line(edit):
    edit("scales/mini.yaml", lambda content: content["hyper"][0]["set"].pop("a_lr"))
    (line,) = complaints()
    assert "a_lr: this key is required and missing" in line


def test_a_required_recipe_is_named(edit):
    edit("recipes.yaml", lambda content: content["recipes"].pop("full-precision"))
    assert any("recipe full-precision is required" in line for line in complaints())


@pytest.mark.parametrize(
    ("rounding", "expected"),
    [
        ("nowhere.roundings:Mine", "no module 'nowhere.roundings'"),
        ("json.nothing:Mine", "no module 'json.nothing'"),
        ("own_rounding", "or give package.module:Class"),
        (":AlwaysDown", "package.module:Name"),
        ("own_rounding:", "package.module:Name"),
    ],
)
def test_a_rounding_of_ones_own_that_cannot_be_found_is_refused(edit, rounding, expected):
    edit("recipes.yaml", into("recipes", mine=MINE | {"rounding": rounding}))
    (line,) = complaints()
    assert f"mine: rounding {rounding!r}" in line
    assert expected in line


def test_a_rounding_of_ones_own_is_accepted_by_its_path(edit):
    edit("recipes.yaml", into("recipes", mine=MINE | {"rounding": "own_rounding:AlwaysDown"}))
    params = load_params("mini")
    assert params.rounding_target(params.recipe("mine").rounding) == "own_rounding:AlwaysDown"


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


def test_a_key_given_twice_is_refused_with_its_line(edit):
    write("seeds: 3\n")
    (first, *rest) = complaints()
    assert "mini.yaml: key given twice: ['seeds']" in first
    assert any("line" in line for line in rest)


def test_a_nested_key_given_twice_is_refused(edit):
    write("\n  mine: {setting: B, rounding: rtn, w_bits: 4, w_bits: 2}\n", "recipes.yaml")
    assert "recipes.yaml: key given twice: ['w_bits']" in complaints()[0]


@pytest.mark.parametrize("tag", ["python/object/apply:os.system", "python/object/new:os.system"])
def test_tags_that_run_code_are_refused_and_not_run(edit, tmp_path, tag):
    write(f"code: !!{tag} ['touch {tmp_path}/ran']\n")
    assert "mini.yaml: could not determine a constructor" in complaints()[0]
    assert not (tmp_path / "ran").exists()


def test_merge_keys_work(edit):
    write("\n  mine: {<<: &base {setting: B, rounding: rtn, w_bits: 4}, w_bits: 2}\n", "recipes.yaml")
    assert load_params("mini").recipe("mine") == Recipe(setting="B", rounding="rtn", w_bits=2)


def test_a_syntax_error_is_named_with_its_line(edit):
    write("seeds: [1\n")
    assert any("mini.yaml" in line for line in complaints())
    assert any("line" in line for line in complaints())


@pytest.mark.parametrize("text", ["- 1\n", "just text\n"])
@pytest.mark.parametrize("name", ["scales/mini.yaml", "recipes.yaml", "sources.yaml"])
def test_a_file_of_another_kind_is_refused(edit, name, text):
    (load.PARAMS / name).write_text(text)
    assert any(name in line for line in complaints())


def test_a_missing_file_is_named(tmp_path):
    assert complaints(str(tmp_path / "mine.yaml")) == [f"{tmp_path / 'mine.yaml'}: missing"]
