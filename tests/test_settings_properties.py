"""Settings: whatever is written, it is read as it stands or refused with one message that names the place."""

import math
import os
import string
import subprocess
import sys
import textwrap
from pathlib import Path

import pydantic
import pytest
import toy
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from table_runs import loaded

from flexround.errors import SettingsError
from flexround.settings import checks, schema, validation, yaml_safety
from flexround.settings.layout import ROOT
from flexround.settings.plan import Plan
from flexround.settings.schema import Hyper
from flexround.settings.validation import read_yaml

FAST = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
NUMBERS = [name for name, value in toy.HYPER.items() if isinstance(value, int | float) and not isinstance(value, bool)]
NONSENSE = st.one_of(
    st.booleans(),
    st.sampled_from([math.inf, -math.inf, math.nan, 1e300, -1e300, 1e25, -1, "5", "1e-3", "", ".inf"]),
    st.floats(max_value=-1e-9),
    st.text(max_size=5),
    st.lists(st.integers(), min_size=1, max_size=2).map(str),
)
WORDS = st.text(st.characters(exclude_categories=["C", "Z"]) | st.just(" "), max_size=8).filter(
    lambda text: not validation.EXPONENT.fullmatch(text)  # PyYAML writes 1e3 without quotes
)
SCALARS = st.none() | st.booleans() | st.integers(-(10**14), 10**14) | WORDS | st.floats(-1e9, 1e9)
DOCUMENTS = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(WORDS, inner, max_size=4))


def refused(call, *arguments):
    """Return the lines of the SettingsError of a call."""
    with pytest.raises(SettingsError) as caught:
        call(*arguments)
    return str(caught.value).splitlines()


def hyper(**changes):
    """Validate hyper-parameters as those of a run."""
    values = toy.HYPER | changes
    if lines := list(yaml_safety.wrong(values)):
        raise SettingsError("\n".join(lines))
    return validation.given(Hyper, values, "file")


@FAST
@given(st.sampled_from(NUMBERS), NONSENSE)
@example("lr", math.inf)
@example("lr", True)
@example("loss_p", 1e300)
@example("iters", "5")
@example("iters", 10**25)
@example("batch", True)
def test_no_hyper_parameter_takes_nonsense_for_a_number(key, value):
    lines = refused(lambda: hyper(**{key: value}))
    assert any(key in line for line in lines)


NAMED = pydantic.TypeAdapter(schema.Name)


@FAST
@given(st.text(max_size=8) | st.text(string.ascii_letters + "./$;_- ", max_size=6))
@example("../x")
@example("a b")
@example("x$(touch y)")
@example("x\n")
@example("")
def test_a_name_is_letters_digits_dots_and_dashes(name):
    allowed = string.ascii_letters + string.digits + "._-"
    if name and name[0] in allowed[:-3] and all(letter in allowed for letter in name):
        assert NAMED.validate_python(name) == name
    else:
        with pytest.raises(pydantic.ValidationError, match="it becomes part of paths"):
            NAMED.validate_python(name)


# files


@FAST
@given(st.binary(max_size=60) | st.text(max_size=60).map(lambda text: text.encode("utf-8", "surrogatepass")))
@example(b"\xff\xfe")
@example(b"[" * 100_000)
@example(b"a: &x [*x]")
@example(b"a: &x {<<: *x}")
@example(b"1: a\n1: b\nx: c\nx: d")
@example(b"? [1]\n: 2")
@example(b"a: 2020-13-45")
@example(b"a: !!timestamp x")
@example(b"a: .inf")
@example(b'a: "\\u2028"')
@example(b"a: " + b"9" * 5000)
@example(b"a: 0b_")
def test_any_file_is_read_or_refused(tmp_path, content):
    path = tmp_path / "file.yaml"
    path.write_bytes(content)
    try:
        assert not [*yaml_safety.wrong(read_yaml(path))]
    except SettingsError as error:
        found = str(error)
    else:
        found = str(path)
    assert str(path) in found


@FAST
@given(DOCUMENTS)
def test_a_document_is_read_as_it_was_written(tmp_path, document):
    path = tmp_path / "file.yaml"
    path.write_text(yaml.safe_dump(document, allow_unicode=True), encoding="utf-8")
    assert read_yaml(path) == document


def test_aliases_that_stand_for_too_much_are_refused_at_once(tmp_path):
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join(10 * [f'*a{i - 1}'])}]" for i in range(1, 12)]
    (tmp_path / "bomb.yaml").write_text("\n".join(lines))
    assert "values, aliases counted" in refused(read_yaml, tmp_path / "bomb.yaml")[0]


def test_numbers_are_read_as_they_are_meant(tmp_path):
    (tmp_path / "a.yaml").write_text("[1e-3, 2E5, -1e+2, 1.e1, 5, 'é']\n", encoding="utf-8-sig")
    assert read_yaml(tmp_path / "a.yaml") == [1e-3, 2e5, -100.0, 10.0, 5, "é"]


@pytest.mark.parametrize("number", ["0640", "-017", "0_7", "1:30", "190:20:30", "0:30.5"])
def test_a_number_that_yaml_1_2_reads_otherwise_is_refused_with_its_line(tmp_path, number):
    (tmp_path / "a.yaml").write_text(f"a: 1\nb: [x, {number}]\nc: '{number}'\n")
    assert refused(read_yaml, tmp_path / "a.yaml")[0].startswith(f"{tmp_path}/a.yaml: line 2: {number}: YAML 1.1 and ")
    (tmp_path / "a.yaml").write_text(f"[0, 0.5, -0.25, 00.5, 10, 08, 1:75, '{number}']")
    assert read_yaml(tmp_path / "a.yaml") == [0, 0.5, -0.25, 0.5, 10, "08", "1:75", number]


def test_what_is_no_file_is_refused(tmp_path):
    assert "can't be read" in refused(read_yaml, tmp_path)[0]
    assert "can't be read" in refused(read_yaml, tmp_path / ("x" * 300))[0]
    assert "can't be read" in refused(read_yaml, Path("a\0b"))[0]


# whole scales


@pytest.mark.parametrize("seeds", [0, -1, "", "x", "1e3", 10**9, "9" * 5000, 1.5, True, "٣" * 9])
def test_a_number_of_seeds_that_no_plan_survives_is_refused(seeds):
    (line,) = refused(Plan, loaded("real"), {"seeds": seeds})
    assert line.startswith("--config seeds=")
    assert line.endswith("give a whole number from 1 to 1000")


@pytest.mark.parametrize("jobs", [0, -1, "", "many", "3 ", 1.5, True])
def test_a_number_of_jobs_that_cannot_share_a_gpu_is_refused(jobs):
    (line,) = refused(Plan, loaded("real"), {"jobs_per_gpu": jobs})
    assert line.startswith(f"--config jobs_per_gpu='{jobs}'")


PLANNING = """
import sys
from flexround.jobs import resolve
from flexround.settings import options
from flexround.settings.load import load_params
from flexround.settings.plan import Plan
tasks = [task for scale in SCALES for task in load_params(scale).scale.tasks.values()]
assert tasks and all(options.of(task.module).training for task in tasks)
plan = Plan(load_params("mini"))
resolve.job(plan, "claims"), resolve.job(plan, "tabulate", 3)
[resolve.job(plan, "evaluate", run) for run in plan.table_runs(3)]
assert not {"torch", "torchvision", "transformers", "datasets", "pyarrow", "pandas", "scipy"} & {*sys.modules}
"""


def test_settings_of_all_tasks_are_declared_and_planning_imports_nothing_slow(tmp_path):
    scales = ("mini", "paper", "real", str(ROOT / "worlds/pretraining.yaml"))
    text = PLANNING.replace("SCALES", repr(scales))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", text], check=True, env=environment, cwd=tmp_path)


def test_options_of_ones_own_task_in_a_single_file_are_its_class_attributes(tmp_path, monkeypatch):
    source = """
        import torch
        from flexround.settings.schema import Count, Strict
        class Mine(Strict):
            size: Count = torch.ones(1).numel()
        class Task:
            Options = Mine
            def prepare(self, out, sources): ...
    """
    (tmp_path / "beside_torch.py").write_text(textwrap.dedent(source))
    monkeypatch.syspath_prepend(tmp_path)
    params = loaded("mini")
    task = params.scale.tasks["squad"].model_copy(
        update={"module": "beside_torch:Task", "options": {"size": -1, "sise": 1}}
    )
    scale = params.scale.model_copy(update={"tasks": params.scale.tasks | {"mine": task}})
    lines = [line for line in refused(checks.check, params._replace(scale=scale)) if "mine" in line]
    assert lines == [
        "scale mini: tasks.mine: options: size = -1: Input should be greater than or equal to 1",
        "scale mini: tasks.mine: options: sise: unknown key 'sise' (did you mean 'size'? known: size)",
    ]
