"""The digest of code: what an edit reruns, and what it must not."""

import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest
import stage_calls
from stage_calls import Work

from flexround import code
from flexround.jobs.command import STAGES
from flexround.jobs.jobfile import ROOMS
from flexround.settings.layout import ROOT


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Put a small package in the place of ours, with two rooms and a file."""
    contents = {
        "room/__init__.py": '"""Text."""\nimport json\nVALUE = 1\n\ndef one():\n    return VALUE\n',
        "room/deep/inside.py": "x = 1\n",
        "room/kernel.cpp": "int x;\n",
        "file.py": "x = 1\n",
        "other/inside.py": "x = 1\n",
    }
    for name, text in contents.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(code, "PACKAGE", tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "old", "new", "moved"),
    [
        ("room/__init__.py", "VALUE = 1", "VALUE = 7", True),
        ("room/deep/inside.py", "1", "7", True),
        ("room/kernel.cpp", "int", "long", True),
        ("file.py", "1", "7", True),
        ("other/inside.py", "1", "7", False),
        ("room/__init__.py", "Text.", "Another text.", False),
        ("room/__init__.py", "VALUE = 1", "VALUE = 1  # a comment", False),
        ("room/__init__.py", "def one():", "\n\ndef one():\n    '''New.'''", False),
    ],
)
def test_an_edit_in_a_room_moves_the_digest_and_no_other(package, name, old, new, moved):
    def found():
        return code.digest(code.files(("room", "file.py")))

    before, text = found(), (package / name).read_text()
    assert old in text
    (package / name).write_text(text.replace(old, new))
    assert (found() != before) == moved
    (package / name).write_text(text)
    assert found() == before


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Put a rounding outside the package, with a helper, on the Python path."""
    (tmp_path / "my_rounding.py").write_text(
        "import json\nimport numpy\nfrom flexround.quant.flexround import FlexRound\nfrom my_helper import half\n\n"
        "class Mine(FlexRound):\n    share = half\n"
    )
    (tmp_path / "my_helper.py").write_text("half = 0.5\n")
    (tmp_path / "my_package").mkdir()
    (tmp_path / "my_package/rounding.py").write_text("from .base import X\n")
    (tmp_path / "my_package/base.py").write_text("X = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "my_rounding", raising=False)
    return tmp_path


def test_python_runs_the_planned_source_not_old_bytecode(tmp_path, monkeypatch):
    """By Python's rule, bytecode fits any source of the same size and second."""
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    module, ran = tmp_path / "mine.py", [sys.executable, "-c", "import mine"]
    for value in "012":
        module.write_text(f"print({value})\n")
        os.utime(module, (10**9, 10**9))
        if value == "0":
            subprocess.run(ran, check=True, cwd=tmp_path)  # leaves bytecode, as any import does
        code.digest({"mine.py": module})
        assert subprocess.run(ran, check=True, cwd=tmp_path, capture_output=True, text=True).stdout == f"{value}\n"


def test_a_users_module_counts_with_those_that_it_imports(own):
    found = code.files((), ("my_rounding:Mine", "flexround.quant.rtn:RTN", "torch.nn:Module"))
    assert found == {name: own / f"{name}.py" for name in ("my_rounding", "my_helper")}
    found = code.files((), ["my_package.rounding:X"])
    assert found["my_package.base"] == own / "my_package/base.py", "a package without __init__"


class Watch:
    """Runs stages and keeps, for each, the files of ours whose code ran and that its digest doesn't cover."""

    def __init__(self, monkeypatch):
        self.stages, self.missed, self.seen = [], [], 0
        self.call = stage_calls.call
        monkeypatch.setattr(stage_calls, "call", self.watched)

    def watched(self, stage, inputs, **options):
        if stage == "gate":  # depends on no code, on purpose
            return self.call(stage, inputs, **options)
        covered = {*code.files((*ROOMS[stage], f"stages/{STAGES[stage]}.py")).values()}
        ran = set()
        gc.collect()  # generators that an earlier stage left are closed by running them
        sys.settrace(lambda frame, *_: ran.add(frame.f_code.co_filename))  # when a function begins
        try:
            self.call(stage, inputs, **options)
        finally:
            sys.settrace(None)
        ours = {path for path in map(Path, ran) if path.is_relative_to(code.PACKAGE)}
        self.stages.append(stage)
        self.seen += len(ours)
        self.missed += [(stage, str(path.relative_to(code.PACKAGE))) for path in ours - covered]


DECIDE_NO_RESULT = {"errors.py", "jobs/command.py", "jobs/jobfile.py", "stages/__init__.py"}
DECIDE_NO_RESULT |= {
    f"settings/{name}.py" for name in ("layout", "options", "params", "validation")
}  # how settings are read


@pytest.mark.parametrize(
    ("scale", "task", "checkpoint", "recipes"),
    [
        ("smoke", "imagenet", "mobilenetv2-brecq", ["cle-b-flexround-w4"]),
        ("text_scale", "glue-rte", "bert-base", ["q-flexround-w8a8-tuned"]),
    ],
)
def test_every_file_that_a_stage_runs_is_in_its_digest(tmp_path, monkeypatch, scale, task, checkpoint, recipes):
    watch, work = Watch(monkeypatch), Work(ROOT / f"tests/{scale}.yaml", tmp_path)
    for recipe in ("full-precision", *recipes):
        work.evaluated(task, checkpoint, recipe)
    assert {"data", "finetune", "calibrate", "reconstruct", "evaluate"} <= {*watch.stages}
    assert watch.seen > 10 * len(watch.stages)
    assert {name for _, name in watch.missed} <= DECIDE_NO_RESULT
