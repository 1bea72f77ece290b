"""Job files: their names, and that a job runs the code that was planned."""

import importlib
import json
import sys
from argparse import Namespace
from pathlib import Path

import pytest

from flexround.jobs import execution, resolve
from flexround.jobs.runs import FetchJob, FinetuneJob, ReconstructJob
from flexround.settings.layout import Run
from flexround.settings.load import load_params
from flexround.settings.plan import Plan


def test_another_explanation_is_no_other_job(tmp_path, monkeypatch):
    """Reasons of hyper-parameters; licence and address of a source, whose record says what it holds."""
    monkeypatch.chdir(tmp_path)
    params = load_params("mini")
    rules = [rule.model_copy(update={"source": "told anew"}) for rule in params.scale.hyper]
    pinned = {name: source.model_copy(update={"licence": "told anew"}) for name, source in params.sources.items()}
    reworded = params._replace(scale=params.scale.model_copy(update={"hyper": rules}), sources=pinned)
    for stage, kind, arguments, told in (
        ("fetch", FetchJob, ["mini-ptb"], lambda job: job.source.licence),
        ("finetune", FinetuneJob, ["ptb", "opt-125m"], lambda job: job.origins["mini-opt-125m"].licence),
        (
            "reconstruct",
            ReconstructJob,
            [Run("mini", "ptb", "opt-125m", "q-rtn-w8a8", 0)],
            lambda job: job.hyper_sources["samples"],
        ),
    ):
        path = Path(resolve.job(Plan(params), stage, *arguments).file)
        before = told(kind.read(path))
        assert Path(resolve.job(Plan(reworded), stage, *arguments).file) == path
        assert before != told(kind.read(path)) == "told anew"


@pytest.mark.parametrize("sha256", [None, "0" * 64])
def test_another_address_is_another_source_unless_pinned(tmp_path, monkeypatch, sha256):
    monkeypatch.chdir(tmp_path)
    params = load_params("paper")
    source = params.sources["resnet18-brecq"].model_copy(update={"sha256": sha256})
    texts = []
    for location in (source.location, "https://example.org/moved"):
        moved = params._replace(sources={"resnet18-brecq": source.model_copy(update={"location": location})})
        texts.append(resolve.job(Plan(moved), "fetch", "resnet18-brecq").file)
    assert (texts[0] == texts[1]) == bool(sha256)


STAGE = """
from pathlib import Path
import my_unit
def run(arguments):
    Path("begun").touch()
    Path(NAME).write_text(TEXT)
"""
SAME, OTHER = "x = 1  # a comment\n", "x = 2\n"


@pytest.mark.parametrize(
    ("when", "name", "text", "code"),
    [
        ("before", "my_unit.py", SAME, 0),
        ("before", "my_unit.py", OTHER, 2),
        ("later", "my_unit.py", OTHER, 2),
    ],
)
def test_a_job_runs_the_code_that_was_planned_or_fails(tmp_path, monkeypatch, capfd, when, name, text, code):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for file, content in {"my_unit.py": "x = 1\n", "my_stage.py": STAGE}.items():
        monkeypatch.delitem(sys.modules, Path(file).stem, raising=False)
        Path(file).write_text(content)
    planned = resolve.planned_code((), ("my_stage:run",))
    Path("job.json").write_text(json.dumps({"code": planned.model_dump(mode="json")}))
    stage = importlib.import_module("my_stage")
    stage.NAME, stage.TEXT = (name, text) if when == "later" else ("elsewhere", "")
    if when == "before":
        Path(name).write_text(text)
    assert execution.run("my_stage:run", Namespace(job=Path("job.json"), threads=1)) == code
    said = capfd.readouterr().err
    assert ("the code has changed since this run was planned; run the same command" in said) == (code == 2)
    assert Path("begun").exists() == (code == 0 or when == "later")
