"""Job files: their names, and that a job runs the code that was planned."""

import importlib
import json
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest
from stage_calls import Work

from flexround.jobs import execution, resolve
from flexround.jobs.jobfile import Code
from flexround.jobs.runs import (
    CalibrateJob,
    DataJob,
    EvaluateJob,
    FetchJob,
    FinetuneJob,
    GateJob,
    ReconstructJob,
    SelectJob,
)
from flexround.settings.layout import ROOT, Run
from flexround.settings.load import load_params
from flexround.settings.params import Params
from flexround.settings.plan import Plan


@pytest.fixture
def work(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return Work(ROOT / "tests/smoke.yaml", tmp_path)


def test_a_job_file_that_is_not_planned_yet_is_named(tmp_path):
    command = [sys.executable, "-m", "flexround.jobs", "claims", str(tmp_path / "job.json")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "job.json: missing; snakemake -n TARGET writes it" in done.stderr


def test_another_explanation_is_no_other_job(tmp_path, monkeypatch):
    """Reasons of hyper-parameters; licence and address of a source, whose record says what it holds."""
    monkeypatch.chdir(tmp_path)
    params = load_params("mini")
    rules = [rule.model_copy(update={"source": "told anew"}) for rule in params.scale.hyper]
    pinned = {name: source.model_copy(update={"licence": "told anew"}) for name, source in params.sources.items()}
    reworded = params._replace(scale=params.scale.model_copy(update={"hyper": rules}), sources=pinned)
    for stage, kind, arguments, told in (
        ("fetch", FetchJob, ["mini-ptb"], lambda job: job.source.licence),
        ("data", DataJob, ["ptb"], lambda job: job.origins["mini-ptb"].licence),
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


def test_claims_are_made_of_evaluations_alone(work):
    evaluated = work.inputs("claims").reads
    assert len(evaluated) > 10
    assert all(path.startswith("results/smoke/evaluated/") for path in evaluated)


def test_every_job_of_a_network_survives_its_file(work, monkeypatch):
    """Defaults, tuples and paths come back as they were: read and written again, the text is the same."""
    network = ("imagenet", "mobilenetv2-brecq")
    run, tuned = (work.run(*network, name) for name in ("b-flexround-w4a4", "q-flexround-w8a8-tuned"))
    monkeypatch.setattr(Params, "check_fit", lambda *_: None)  # images can't hold out what a choice needs
    inputs = {
        CalibrateJob: work.inputs("calibrate", "imagenet", 64, 0),
        FinetuneJob: work.inputs("finetune", *network),
        GateJob: work.inputs("gate", *network),
        ReconstructJob: work.inputs("reconstruct", run),
        SelectJob: work.inputs("select", tuned),
        EvaluateJob: work.inputs("evaluate", tuned),
    }
    for kind, given in inputs.items():
        path = work.root / given.file
        text = kind.read(path).model_dump_json(indent=1)
        assert text + "\n" == path.read_text()


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
        ("before", "my_data.yaml", SAME, 2),
        ("later", "my_unit.py", SAME, 0),
        ("later", "my_unit.py", OTHER, 2),
    ],
)
def test_a_job_runs_the_code_that_was_planned_or_fails(tmp_path, monkeypatch, capfd, when, name, text, code):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    files = dict.fromkeys(("my_unit.py", "my_data.yaml"), "x = 1\n") | {"my_stage.py": STAGE}
    for file, content in files.items():
        monkeypatch.delitem(sys.modules, Path(file).stem, raising=False)
        Path(file).write_text(content)
    planned = resolve.planned_code(Code(rooms=(), modules=("my_stage:run",), files=(str(tmp_path / "my_data.yaml"),)))
    Path("job.json").write_text(json.dumps({"code": planned.model_dump(mode="json")}))
    stage = importlib.import_module("my_stage")
    stage.NAME, stage.TEXT = (name, text) if when == "later" else ("elsewhere", "")
    if when == "before":
        Path(name).write_text(text)
    assert execution.run("my_stage:run", Namespace(job=Path("job.json"), threads=1)) == code
    said = capfd.readouterr().err
    assert ("the code has changed since this run was planned; run the same command" in said) == (code == 2)
    assert Path("begun").exists() == (code == 0 or when == "later")
