"""Settings: a value is read as it stands, or one message names its place."""

import math
import os
import string
import subprocess
import sys
import textwrap

import pydantic
import pytest
import toy
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from table_runs import loaded

from flexround.errors import SettingsError
from flexround.settings import schema, validation
from flexround.settings.layout import ROOT
from flexround.settings.load import load_params
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


def refused(call, *arguments):
    """Return the lines of the SettingsError of a call."""
    with pytest.raises(SettingsError) as caught:
        call(*arguments)
    return str(caught.value).splitlines()


def hyper(**changes):
    """Validate hyper-parameters as those of a run."""
    return validation.given(Hyper, toy.HYPER | changes, "file")


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


class Dated(schema.Strict):
    revision: str


def test_numbers_are_read_as_they_are_meant(tmp_path):
    (tmp_path / "a.yaml").write_text("[1e-3, 2E5, -1e+2, 1.e1, 5, 'é']\n", encoding="utf-8-sig")
    assert read_yaml(tmp_path / "a.yaml") == [1e-3, 2e5, -100.0, 10.0, 5, "é"]


def test_a_date_is_text(tmp_path):
    (tmp_path / "a.yaml").write_text("revision: 2024-01-01\n")
    assert validation.load(Dated, tmp_path / "a.yaml").revision == "2024-01-01"


# whole scales


@pytest.mark.parametrize("value", [0, -1, "", "x", "1e3", "9" * 5000, 1.5, True])
@pytest.mark.parametrize("key", ["seeds", "jobs_per_gpu"])
def test_a_number_that_no_plan_survives_is_refused(key, value):
    (line,) = refused(Plan, loaded("real"), {key: value})
    assert line.startswith(f"--config: {key} = ")


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


def test_planning_imports_nothing_slow(tmp_path):
    scales = ("mini", "paper", "real", str(ROOT / "worlds/pretraining.yaml"))
    text = PLANNING.replace("SCALES", repr(scales))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", text], check=True, env=environment, cwd=tmp_path)


def test_options_of_ones_own_task_in_a_single_file_are_checked(tmp_path):
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
    file = tmp_path / "mine.yaml"
    task = "{module: 'beside_torch:Task', options: {size: -1, sise: 1}}"
    file.write_text(f"name: mine\nextends: mini\ntasks: {{mine: {task}}}\n")
    assert refused(load_params, str(file)) == [
        f"{file}: tasks.mine: options: size = -1: Input should be greater than or equal to 1",
        f"{file}: tasks.mine: options: sise: unknown key 'sise' (did you mean 'size'? known: size)",
    ]
