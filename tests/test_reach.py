"""Which code a job can import: what an edit reruns, and what it must not."""

import gc
import json
import sys
import types
from pathlib import Path

import pytest
import stage_calls
from stage_calls import Work

from flexround.jobs import codefile
from flexround.jobs.jobfile import network_code
from flexround.settings import reach
from flexround.settings.layout import ROOT
from flexround.settings.load import load_params
from flexround.settings.plan import Plan


def reached(*starts):
    return {module.path: module.digest for module in reach.closure(*starts)}


def forget():
    for function in (reach.read_module, reach._roots, codefile.contents):
        function.cache_clear()


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Put a small package in the place of ours; returns a function: does an edit of a file move a digest?"""
    root = tmp_path / "flexround"
    contents = {
        "__init__.py": "",
        "start.py": (
            "from typing import TYPE_CHECKING\nfrom flexround import inside\nfrom flexround.deep.direct import used\n"
            "if TYPE_CHECKING:\n    from flexround import typed\nelse:\n    from flexround import untyped\n\n"
            "def run():\n    import flexround.deep.late as late\n    return inside.one(), used, late.called()\n"
        ),
        "inside.py": '"""Text."""\nimport json\nVALUE = 1\n\ndef one():\n    return VALUE\n',
        "deep/__init__.py": "x = 1\n",
        "deep.py": "x = 1\n",  # which the package hides
        "deep/direct.py": "from . import beside\nused = unused = 3\n",
        "deep/beside.py": "from ..start import run\n",  # a circle
        "deep/late.py": "def called():\n    return load('flexround.deep.named:thing')\n",
        "deep/named.py": "thing = 1\n",
        "deep/other.py": "thing = 1\n",
        "typed.py": "thing = 1\n",
        "untyped.py": "thing = 1\n",
    }
    for name, text in contents.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    monkeypatch.setattr(reach, "PACKAGE", root)
    forget()

    def moves(name, old, new):
        def digests():
            forget()
            return reached("flexround.start:run")

        path = root / name
        before, text = digests(), path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))
        after = digests()
        path.write_text(text)
        assert digests() == before
        return after != before

    yield moves
    forget()


@pytest.mark.parametrize(
    ("name", "old", "new", "moved"),
    [
        ("start.py", "return inside.one()", "return -inside.one()", True),
        ("inside.py", "VALUE = 1", "VALUE = 7", True),
        ("inside.py", "import json\n", "import json\njson.loads('1')\n", True),
        ("deep/__init__.py", "x = 1", "x = 7", True),
        ("deep/direct.py", "unused = 3", "unused = 7", True),
        ("deep/beside.py", "run", "run as again", True),
        ("deep/late.py", "def called():", "def called(x=1):", True),
        ("deep/named.py", "thing = 1", "thing = 7", True),
        ("untyped.py", "thing = 1", "thing = 7", True),
        ("start.py", "from flexround import inside\n", "from flexround.deep import direct as inside\n", True),
        ("deep/other.py", "thing = 1", "thing = 7", False),
        ("deep.py", "x = 1", "x = 7", False),
        ("typed.py", "thing = 1", "thing = 7", False),
        ("inside.py", "Text.", "Another text.", False),
        ("inside.py", "VALUE = 1", "VALUE = 1  # a comment", False),
        ("inside.py", "return VALUE", "return (\n        VALUE\n    )", False),
        ("inside.py", "def one():", "\n\ndef one():\n    '''New.'''", False),
    ],
)
def test_an_edit_of_code_that_can_be_imported_moves_a_digest_and_no_other(package, name, old, new, moved):
    assert package(name, old, new) == moved


# modules of the user's


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Put a rounding outside the package, with a helper, on the Python path."""
    (tmp_path / "my_rounding.py").write_text(
        "import json\nimport numpy\nfrom flexround.quant.flexround import FlexRound\nfrom my_helper import half\n\n"
        "class Mine(FlexRound):\n    share = half\n"
    )
    (tmp_path / "my_helper.py").write_text("half = 0.5\n")
    (tmp_path / "my_other.py").write_text("")
    (tmp_path / "my_package").mkdir()
    (tmp_path / "my_package/rounding.py").write_text("from .base import X\n")
    (tmp_path / "my_package/base.py").write_text("X = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("my_rounding", "my_helper"):  # of another test
        monkeypatch.delitem(sys.modules, name, raising=False)
    forget()
    yield tmp_path
    forget()


def test_a_users_module_counts_with_its_helpers_and_with_what_it_uses_of_ours(own):
    files = set(reached("my_rounding:Mine"))
    assert {own / "my_rounding.py", own / "my_helper.py"} <= files
    assert own / "my_other.py" not in files
    assert ROOT / "src/flexround/quant/functions.py" in files, "an edit of FlexRound's gradient must rerun it"
    assert all(file.is_relative_to(own) or file.is_relative_to(ROOT / "src") for file in files)
    assert own / "my_package/base.py" in reached("my_package.rounding:X"), "a package without __init__"


def test_modules_without_a_file_and_installed_ones_are_foreign(own, monkeypatch):
    """Some packages put modules together in memory; Debian installs into a directory of another name."""
    monkeypatch.setitem(sys.modules, "made_in_memory", types.ModuleType("made_in_memory"))
    (own / "dist-packages").mkdir()
    (own / "dist-packages/installed.py").write_text("X = 1\n")
    (own / "my_rounding.py").write_text("import made_in_memory\nimport installed\n")
    monkeypatch.syspath_prepend(str(own / "dist-packages"))
    assert set(reached("my_rounding")) == {own / "my_rounding.py"}


# the jobs of the suite


@pytest.fixture(scope="module")
def plan():
    forget()
    return Plan(load_params("mini"))


def of(plan, stage, task, checkpoint, recipe):
    """Return the files that a stage's job depends on, below the package."""
    targets = [*network_code(plan, task, checkpoint)]
    if stage == "reconstruct":
        targets.append(plan.params.rounding_target(plan.params.recipe(recipe).rounding))
    _, text = codefile.contents(f"flexround.stages.{stage}", "flexround.jobs.execution", *targets)
    return {file.rpartition("/src/flexround/")[2] for file in json.loads(text)["files"]}


LLAMA, RESNET = ("commonsense", "llama-7b"), ("imagenet", "resnet18-brecq")
FOREIGN = "models/resnet tasks/webnlg tasks/glue tasks/images quant/adaround mini/digits"
ENGINE = "reconstruct/engine reconstruct/phases quant/flexround tasks/text tasks/glue tasks/commonsense"
REACHED = [  # the job, some files that it depends on, some that it does not
    ("reconstruct", *LLAMA, "q-flexround-w4a8", "reconstruct/engine quant/flexround models/transformer", FOREIGN),
    ("evaluate", *LLAMA, "", "tasks/harness models/transformer quant/grid", "reconstruct/engine"),
    ("evaluate", *RESNET, "", "models/resnet tasks/images stages/evaluate quant/grid", ENGINE),
    ("finetune", *RESNET, "", "models/resnet tasks/images", "quant/grid " + ENGINE),  # moved by no rounding
    ("data", *RESNET, "", "stages/data tasks/images", "quant/grid " + ENGINE),
]


@pytest.mark.parametrize(("stage", "task", "checkpoint", "recipe", "has", "lacks"), REACHED)
def test_a_job_depends_on_its_own_network_and_task_and_on_nothing_foreign(
    plan, stage, task, checkpoint, recipe, has, lacks
):
    files = {name.removesuffix(".py") for name in of(plan, stage, task, checkpoint, recipe)}
    assert set(has.split()) <= files
    assert not files & set(lacks.split())
    assert not [name for name in files if name.startswith(("results/", "tools/", "regress/"))]
    assert not files & {"settings/load", "jobs/resolve", "jobs/server"}, "how jobs are planned or started"
    assert len(files) <= 105, f"{len(files)} files"


ROUNDINGS = {"rtn", "adaround", "flexround", "adaquant", "gptq", "signround", "lrq"}


@pytest.mark.parametrize("rounding", [*sorted(ROUNDINGS), "adaquant-flexround"])
def test_a_run_depends_on_its_own_rounding_alone(plan, rounding):
    files = of(plan, "reconstruct", *RESNET, f"b-{rounding}-w4")
    expected = {"adaquant", "flexround"} if "adaquant" in rounding else {rounding}  # in one file, one uses the other
    assert {name for name in ROUNDINGS if f"quant/{name}.py" in files} == expected


# the digests miss nothing: every file of ours whose code a stage really runs is among those that they cover


class Watch:
    """Runs stages and keeps, for each, the files of ours whose code ran and that its digests don't cover."""

    def __init__(self, monkeypatch):
        self.stages, self.missed, self.seen = [], [], 0
        self.call, self.closure, self.covered = stage_calls.call, reach.closure, set()
        monkeypatch.setattr(stage_calls, "call", self.watched)
        monkeypatch.setattr(reach, "closure", self.planned)
        monkeypatch.setattr(codefile, "contents", codefile.contents.__wrapped__)  # not those of an earlier test

    def planned(self, *starts):
        found = self.closure(*starts)
        self.covered = {module.path for module in found}
        return found

    def watched(self, stage, inputs, **options):
        if stage == "gate":  # depends on no code, on purpose
            return self.call(stage, inputs, **options)
        assert reach.PACKAGE / f"stages/{stage}.py" in self.covered
        ran = set()
        gc.collect()  # generators that an earlier stage left are closed by running them
        sys.settrace(lambda frame, *_: ran.add(frame.f_code.co_filename))  # when a function begins
        try:
            self.call(stage, inputs, **options)
        finally:
            sys.settrace(None)
        ours = {path for path in map(Path, ran) if path.is_relative_to(reach.PACKAGE)}
        self.stages.append(stage)
        self.seen += len(ours)
        self.missed += [(stage, path) for path in ours - self.covered]


@pytest.mark.parametrize(
    ("scale", "task", "checkpoint", "recipes"),
    [
        ("smoke", "imagenet", "mobilenetv2-brecq", ["cle-b-flexround-w4"]),
        ("text_scale", "glue-rte", "bert-base", ["q-flexround-w8a8-tuned"]),
        ("commonsense_scale", "commonsense", "llama-7b", ["q-adaround-w8a8"]),
    ],
)
def test_every_file_that_a_stage_runs_is_in_its_digests(tmp_path, monkeypatch, scale, task, checkpoint, recipes):
    watch, work = Watch(monkeypatch), Work(ROOT / f"tests/{scale}.yaml", tmp_path)
    for recipe in ("full-precision", *recipes):
        work.evaluated(task, checkpoint, recipe)
    assert {"data", "finetune", "calibrate", "reconstruct", "evaluate"} <= {*watch.stages}
    assert watch.seen > 10 * len(watch.stages)
    assert not watch.missed
