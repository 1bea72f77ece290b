"""A scale that extends another says only what differs."""

import textwrap
from pathlib import Path

import pytest

from flexround.errors import SettingsError
from flexround.settings import load, user_rows
from flexround.settings.layout import ROOT, Run
from flexround.settings.load import load_params
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


FIVE_LINES = textwrap.dedent((ROOT / "config/README.md").read_text().rpartition(":\n\n")[2])


def test_a_scale_of_five_lines_is_mini_but_for_what_it_says(write):
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


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"seeds": 2}, {"seeds": 2, "tasks": {"a": {"x": 1, "y": {"z": 2, "w": 3}}, "b": {}}, "sizes": [1, 2]}),
        ({"tasks": {"a": {"y": {"z": 5}}, "b": None}}, {"tasks": {"a": {"x": 1, "y": {"z": 5, "w": 3}}}}),
        ({"sizes": [3], "more": {"k": 1}}, {"sizes": [3], "more": {"k": 1}, "seeds": 1}),
    ],
)
def test_mappings_are_joined_and_null_leaves_out(change, expected):
    base = {"seeds": 1, "tasks": {"a": {"x": 1, "y": {"z": 2, "w": 3}}, "b": {}}, "sizes": [1, 2]}
    found = load.laid_over(base, change)
    assert {key: found[key] for key in expected} == expected


@pytest.mark.parametrize(
    ("change", "shown"),
    [
        ("shows: {published: false}", ("table", "claims.yaml", False)),
        ("shows: {tables: real}", ("real", None, True)),
    ],
)
def test_claims_go_with_the_tables_that_they_are_about(write, change, shown):
    shows = load_params(write("mine.yaml", f"name: mine\nextends: mini\n{change}")).scale.shows
    assert (shows.tables, shows.claims, shows.published) == shown


def test_a_chain_of_files_is_followed_and_rules_come_last(write, tmp_path, monkeypatch):
    rule = "hyper: [{set: {iters: %d}, source: a test}]"
    write("deep/middle.yaml", f"name: middle\nextends: ../base.yaml\nseeds: 2\n{rule % 3}")
    write("base.yaml", f"name: base\nextends: mini\nseeds: 5\n{rule % 2}")
    last = write("last.yaml", f"name: last\nextends: deep/middle.yaml\n{rule % 4}")
    for directory, path in (("/", last), (tmp_path / "deep", "../last.yaml")):
        monkeypatch.chdir(directory)
        scale = load_params(path).scale
        assert (scale.name, scale.seeds, scale.description) == ("last", 2, "the scale middle with changes")
        assert [found.set for found in scale.hyper[-3:]] == [{"iters": number} for number in (2, 3, 4)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: mine\nextends: minni", "did you mean 'mini'"),
        ("name: real\nextends: mini", "name = "),
        ("name: mine\nextends: mini\nhyper: [{set: {lr: fast}, source: a test}]", r"mine\.yaml: hyper\.0\.set: lr"),
    ],
)
def test_mistakes_are_of_the_users_file(write, text, message):
    with pytest.raises(SettingsError, match=message):
        load_params(write("mine.yaml", text))


def test_results_are_of_one_file_until_it_is_gone(write, tmp_path):
    one, other = (write(f"{place}/mine.yaml", "name: mine\nextends: mini") for place in ("one", "other"))
    for path in (one, one):
        user_rows.claim("mine", path, tmp_path)
    arguments = ["--scale", other, "--root", str(tmp_path), "--out", str(tmp_path / "report.html")]
    with pytest.raises(SettingsError, match=f"^{other}: name: results/mine is of {one}, which has this name too"):
        report.run(report.parser().parse_args(arguments))
    Path(one).unlink()
    user_rows.claim("mine", other, tmp_path)


def test_each_rule_of_real_sets_a_value_of_some_run():
    plan = Plan(load_params("real"))
    runs = [run for table in plan.complete_tables() for run in plan.table_runs(table)]
    runs += [run for figure in plan.complete_figures() for run in plan.figure_runs(figure)]
    used = {item for run in runs if plan.params.recipe(run.recipe).quantized for item in plan.hyper(run)[1].items()}
    assert {(key, rule.source) for rule in plan.scale.hyper for key in rule.set} <= used
