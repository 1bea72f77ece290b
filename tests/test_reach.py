"""Which code a job can import: what an edit reruns, and what it must not."""

import pytest

from flexround.jobs import codefile, resolve
from flexround.jobs.jobfile import network_code
from flexround.settings import reach
from flexround.settings.layout import ROOT, Run
from flexround.settings.load import load_params
from flexround.settings.plan import Plan


def reached(*starts):
    return {module.path: module.digest for module in reach.closure(*starts)}


def forget():
    for function in (reach.read_module, reach._roots, resolve.code):
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


# the jobs of the suite


@pytest.fixture(scope="module")
def plan():
    forget()
    return Plan(load_params("mini"))


def of(plan, stage, task, checkpoint, recipe="q-flexround-w4a8"):
    """Return the files that a stage's job depends on, below the package."""
    targets = [*network_code(plan, task, checkpoint)]
    if stage == "reconstruct":
        targets.append(plan.params.rounding_target(plan.params.recipe(recipe).rounding))
    text, _ = codefile.contents(f"flexround.stages.{stage}", "flexround.jobs.execution", *targets)
    return {line.partition("  src/flexround/")[2] for line in text.splitlines()}


def test_a_llamas_reconstruction_depends_on_nothing_foreign(plan):
    files = of(plan, "reconstruct", "commonsense", "llama-7b")
    assert {"reconstruct/engine.py", "quant/flexround.py", "models/llama.py", "stages/reconstruct.py"} <= files
    foreign = ("models/bert.py", "models/resnet.py", "models/mobilenetv2.py", "tasks/webnlg/task.py")
    assert not files & {*foreign, "tasks/glue/task.py", "tasks/images/task.py", "quant/adaround.py", "mini/digits.py"}
    assert not [name for name in files if name.startswith(("results/", "tools/", "regress/"))]
    assert len(files) <= 105, f"{len(files)} files"


def test_an_evaluation_depends_on_its_own_task_and_not_on_how_networks_are_made(plan):
    files = of(plan, "evaluate", "imagenet", "resnet18-brecq")
    assert {"models/resnet.py", "tasks/images/task.py", "stages/evaluate.py"} <= files
    assert not files & {"reconstruct/engine.py", "reconstruct/phases.py", "quant/flexround.py"}
    assert not [name for name in files if name.startswith(("tasks/text", "tasks/glue", "tasks/commonsense"))]
    assert "tasks/commonsense/harness.py" in of(plan, "evaluate", "commonsense", "llama-7b")


def test_what_both_stages_use_moves_networks_and_evaluations_but_nothing_in_full_precision(plan):
    using = {
        s
        for s in ("finetune", "reconstruct", "evaluate")
        if "quant/grid.py" in of(plan, s, "imagenet", "resnet18-brecq")
    }
    assert using == {"reconstruct", "evaluate"}


ROUNDINGS = ("rtn", "adaround", "flexround", "adaquant", "gptq", "signround", "lrq")


@pytest.mark.parametrize(
    ("recipe", "expected"),
    [
        ("b-rtn-w4", {"rtn"}),
        ("b-adaround-w4", {"adaround"}),
        ("b-flexround-w4", {"flexround"}),
        ("b-adaquant-w4", {"adaquant", "flexround"}),
        ("b-adaquant-flexround-w4", {"adaquant", "flexround"}),
        ("b-gptq-w4", {"gptq"}),
        ("b-signround-w4", {"signround"}),
        ("b-lrq-w4", {"lrq"}),
    ],
)
def test_a_run_depends_on_its_own_rounding_alone(plan, recipe, expected):
    files = of(plan, "reconstruct", "imagenet", "resnet18-brecq", recipe)
    roundings = {f"quant/{name}.py" for name in ROUNDINGS}
    assert files & roundings == {f"quant/{name}.py" for name in expected}


def test_no_job_depends_on_how_jobs_are_resolved_or_started_and_the_gate_on_no_code(plan, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for arguments in (
        ("evaluate", Run("mini", "imagenet", "resnet18-brecq", "full-precision", 0)),
        ("reconstruct", Run("mini", "imagenet", "resnet18-brecq", "b-flexround-w4", 0)),
        ("data", "imagenet"),
    ):
        text = (tmp_path / resolve.inputs(plan, *arguments)["code"]).read_text()
        assert not [name for name in ("settings/load.py", "jobs/resolve.py", "jobs/server.py") if name in text]
    assert set(resolve.inputs(plan, "gate", "imagenet", "resnet18-brecq")) == {"job", "read_0", "read_1"}
