"""Job files: what a job is refused with, and that a file is rewritten only if it says something else."""

import json

import pytest
from stage_calls import Work

from flexround import artifacts
from flexround.errors import InputError, SettingsError
from flexround.jobs import jobfile
from flexround.jobs.jobfile import CalibrateJob, DataJob, EvaluateJob, FinetuneJob, GateJob, ReconstructJob, SelectJob
from flexround.settings.layout import ROOT


@pytest.fixture
def work(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return Work(ROOT / "tests/smoke.yaml", tmp_path)


@pytest.fixture
def changed(work, tmp_path):
    """Return a function that reads a gate's job file after a change."""
    path = tmp_path / work.jobs.gate("imagenet", "mobilenetv2-brecq")["job"]

    def read(text=None, without=(), **changes):
        content = json.loads(path.read_text())
        kept = {key: value for key, value in (content | changes).items() if key not in without}
        path.write_text(json.dumps(kept) if text is None else text)
        return jobfile.read(GateJob, path)

    return read


def test_a_job_is_read_as_it_was_written(changed):
    job = changed()
    assert (job.names, job.gate.metric) == (("smoke", "imagenet", "mobilenetv2-brecq"), "top1")


@pytest.mark.parametrize("given", [2, "1", None])
def test_another_format_is_refused_by_name(changed, given):
    with pytest.raises(InputError, match=r"gates/.*job\.json: not a job file of format 1; snakemake -n writes it anew"):
        changed(format=given)
    with pytest.raises(InputError, match="not a job file of format 1"):
        changed(without=["format"])
    with pytest.raises(InputError, match="not a job file of format 1"):
        changed("[1]")


def test_a_missing_key_is_named(changed):
    with pytest.raises(SettingsError, match=r"job\.json: weights: this key is required and missing"):
        changed(without=["weights"])


def test_a_key_that_no_rule_knows_is_named(changed):
    with pytest.raises(SettingsError, match=r"job\.json: weigths: unknown key 'weigths' \(did you mean 'weights'"):
        changed(weigths="there")


@pytest.mark.parametrize("text", ["", '{"format": 1', "<html>"])
def test_damaged_json_is_one_message(changed, text):
    with pytest.raises(InputError, match=r"job\.json: not valid JSON"):
        changed(text)


def test_a_missing_job_is_one_message(tmp_path):
    with pytest.raises(InputError, match=r"job\.json: missing"):
        jobfile.read(GateJob, tmp_path / "job.json")


def test_the_job_of_another_rule_is_refused(work):
    with pytest.raises(SettingsError, match=r"job\.json: .*required and missing"):
        jobfile.read(GateJob, work.jobs.data("imagenet")["job"])


def test_a_job_is_rewritten_only_if_it_says_something_else(work, tmp_path):
    path = tmp_path / work.jobs.data("imagenet")["job"]
    before = path.stat().st_mtime_ns
    work.jobs.data("imagenet")
    assert path.stat().st_mtime_ns == before
    artifacts.write_text(path, "other")
    work.jobs.data("imagenet")
    assert jobfile.read(DataJob, path).name == "imagenet"


def test_every_job_of_a_network_survives_its_file(work):
    """Defaults, tuples and paths come back as they were: read and written again, the text is the same."""
    network = ("imagenet", "mobilenetv2-brecq")
    run, tuned = (work.run(*network, name) for name in ("b-flexround-w4a4", "q-flexround-w8a8-tuned"))
    inputs = {
        CalibrateJob: work.jobs.calibrate("imagenet", 64, 0),
        FinetuneJob: work.jobs.finetune(*network),
        GateJob: work.jobs.gate(*network),
        ReconstructJob: work.jobs.reconstruct(run),
        SelectJob: work.jobs.select(tuned),
        EvaluateJob: work.jobs.evaluate(tuned),
    }
    for kind, given in inputs.items():
        text = (work.root / given["job"]).read_text()
        assert jobfile.read(kind, given["job"]).model_dump_json(indent=1) + "\n" == text
