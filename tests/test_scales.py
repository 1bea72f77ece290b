"""A scale that extends another says only what differs."""

import re
import shutil
import textwrap
from pathlib import Path

import pytest

from flexround.errors import SettingsError
from flexround.settings import load, user_rows
from flexround.settings.layout import ROOT, Run
from flexround.settings.load import load_params, read_scale
from flexround.settings.plan import Plan
from flexround.tools import report


@pytest.fixture
def write(tmp_path):
    """Return a function that writes a scale file and returns its path."""

    def written(name, text):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return str(path)

    return written


FIVE_LINES = textwrap.dedent((ROOT / "config/README.md").read_text().rpartition("lie:\n\n")[2])


def test_a_scale_of_five_lines_is_mini_but_for_what_it_says_and_its_rule_wins(write):
    mini, few = Plan(load_params("mini")), Plan(load_params(write("few.yaml", FIVE_LINES)))
    there, here = mini.scale.model_dump(), few.scale.model_dump()
    changed = {key for key in there if there[key] != here[key]}
    assert changed == {"name", "description", "seeds", "tasks", "hyper"}
    assert {name for name in there["tasks"] if there["tasks"][name] != here["tasks"][name]} == {"imagenet"}
    assert few.scale.tasks["imagenet"].options == {"train": 5000, "val": 10000}
    assert here["hyper"][:-1] == there["hyper"]

    assert few.complete_tables() == mini.complete_tables()
    assert {run.seed for run in few.table_runs(2) if "w4" in run.recipe} == {0, 1, 2}
    hyper, sources = few.hyper(Run("mini-few", "imagenet", "resnet18-brecq", "b-adaround-w4", 0))
    assert (hyper.iters, sources["iters"]) == (50, "half the images")
    other = ("glue-rte", "bert-base", "q-flexround-w8a8", 0)
    assert few.hyper(Run("mini-few", *other)) == mini.hyper(Run("mini", *other))


BASE = """
name: base
seeds: 1
tasks:
  a: {module: m, options: {x: 1, y: {z: 2, w: 3}}}
  b: {module: m}
hyper: [{set: 1}, {set: 2}]
tables: [{caption: a}]
sizes: [1, 2]
shows: {tables: base, claims: base.yaml}
"""


@pytest.mark.parametrize(
    ("change", "key", "expected"),
    [
        ("seeds: 2", "seeds", 2),
        ("tasks: {a: {options: {y: {z: 5}}}}", "tasks", {"a": {"x": 1, "y": {"z": 5, "w": 3}}, "b": None}),
        ("tasks: {b: null}", "tasks", {"a": {"x": 1, "y": {"z": 2, "w": 3}}}),
        ("tasks: {a: {options: {y: {w: null}}}}", "tasks", {"a": {"x": 1, "y": {"z": 2}}, "b": None}),
        ("hyper: [{set: 3}]", "hyper", [{"set": 1}, {"set": 2}, {"set": 3}]),
        ("tables: [{caption: b}]", "tables", [{"caption": "b"}]),
        ("shows: {published: false}", "shows", {"tables": "base", "claims": "base.yaml", "published": False}),
        ("shows: {tables: mine}", "shows", {"tables": "mine"}),
        ("shows: {tables: mine, claims: mine.yaml}", "shows", {"tables": "mine", "claims": "mine.yaml"}),
        ("sizes: [3]", "sizes", [3]),
        ("sizes: [3]", "description", "the scale base with changes"),
        ("description: of mine", "description", "of mine"),
        ("more: {k: 1}", "more", {"k": 1}),
    ],
)
def test_mappings_are_joined_null_leaves_out_rules_follow_and_the_rest_is_replaced(write, change, key, expected):
    write("base.yaml", BASE)
    found = read_scale(write("mine.yaml", f"name: mine\nextends: base.yaml\n{change}"))
    assert found["name"] == "mine"
    assert "extends" not in found
    if key == "tasks":
        found["tasks"] = {name: task.get("options") for name, task in found["tasks"].items()}
    assert found[key] == expected


def test_a_path_is_relative_to_the_file_that_extends_it_and_a_chain_is_followed(write, tmp_path, monkeypatch):
    write("base.yaml", BASE)
    write("deep/middle.yaml", "name: middle\nextends: ../base.yaml\nseeds: 2\nhyper: [{set: 3}]")
    last = write("last.yaml", "name: last\nextends: deep/middle.yaml\nhyper: [{set: 4}]")
    expected = {"name": "last", "seeds": 2, "hyper": [{"set": number} for number in (1, 2, 3, 4)]}
    for directory, path in (("/", last), (tmp_path, "last.yaml"), (tmp_path / "deep", "../last.yaml")):
        monkeypatch.chdir(directory)
        found = read_scale(path)
        assert {key: found[key] for key in expected} == expected


@pytest.mark.parametrize(
    ("extends", "message"),
    [
        ("absent.yaml", r"\S+/absent\.yaml: missing"),
        ("minni", r"scale 'minni' \(did you mean 'mini'.*"),
        ("mine.yaml", r"\S+/mine\.yaml: extends: \S+ -> \S+/mine\.yaml is a circle"),
        ("deep/back.yaml", r"\S+/mine\.yaml: extends: \S+ -> \S+/deep/back\.yaml -> \S+/mine\.yaml is a circle"),
    ],
)
def test_a_circle_a_missing_file_and_an_unknown_name_are_one_clear_message(write, extends, message):
    write("deep/back.yaml", "name: back\nextends: ../mine.yaml")
    path = write("mine.yaml", f"name: mine\nextends: {extends}")
    with pytest.raises(SettingsError) as caught:
        load_params(path)
    assert re.fullmatch(message, str(caught.value)), caught.value


@pytest.mark.parametrize("name", ["", "name: mini\n", "name: real\n", "name: reference\n", "name: sources\n"])
def test_a_scale_takes_no_name_whose_results_are_something_else(write, name):
    path = write("mine.yaml", f"{name}extends: mini\nseeds: 2")
    with pytest.raises(SettingsError, match=f"^{re.escape(path)}: name = '{name[6:-1] or 'mini'}': "):
        load_params(path)


def test_a_scale_among_the_projects_has_the_name_of_its_file(tmp_path, monkeypatch):
    shutil.copytree(load.PARAMS, tmp_path / "params", ignore=shutil.ignore_patterns("networks", "data"))
    monkeypatch.setattr(load, "PARAMS", tmp_path / "params")
    (tmp_path / "params/scales/mine.yaml").write_text("name: yours\nextends: mini")
    with pytest.raises(SettingsError, match=r"mine\.yaml: name = 'yours': .*; write mine, or "):
        load_params("mine")


def test_results_are_of_one_file_until_it_is_gone(write, tmp_path):
    one, other = (write(f"{place}/mine.yaml", "name: mine\nextends: mini") for place in ("one", "other"))
    for path in (one, one):
        user_rows.claim("mine", path, tmp_path)
    arguments = ["--scale", other, "--root", str(tmp_path), "--out", str(tmp_path / "report.html")]
    with pytest.raises(SettingsError, match=f"^{other}: name: results/mine is of {one}, which has this name too"):
        report.run(report.parser().parse_args(arguments))
    shutil.copytree(tmp_path, tmp_path / "copy")
    user_rows.claim("mine", str(tmp_path / "copy/one/mine.yaml"), tmp_path / "copy")
    Path(one).unlink()
    user_rows.claim("mine", other, tmp_path)


@pytest.mark.parametrize("rule", ["{when: {recipe: b-flexrond}, set: {lr: 1.0e-3}}", "{when: {}, set: {lr: fast}}"])
def test_rules_are_counted_from_the_users_file(write, rule):
    path = write("mine.yaml", f"name: mine\nextends: mini\nhyper: [{rule[:-1]}, source: a test}}]\n")
    with pytest.raises(SettingsError, match=r"hyper\.0\."):
        load_params(str(path))
