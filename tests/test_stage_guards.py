"""What a stage reads is what its manifest says, and what it goes on with is of this very job."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from stage_calls import Work, call

from flexround.errors import InputError
from flexround.io import artifacts, resume
from flexround.jobs import resolve
from flexround.stages import evaluate, finetune, reconstruct

TESTS = Path(__file__).parent
IMAGES = "imagenet", "mobilenetv2-brecq"
TEXTS = "corpus", "gpt-neo-125m"


class Stop(Exception):
    """A stage has said where it keeps its work."""


@pytest.fixture(autouse=True)
def _code_is_written_here():
    """Forget which hashes of code are written: they may be in the directory of another test."""
    resolve.code.cache_clear()


@pytest.fixture
def kept(monkeypatch):
    """Make a stage stop where it begins to compute; return the names of what it would have gone on with."""
    names = []

    def stop(directory, *rest):
        names.append(rest[0] if rest else directory.name)
        raise Stop

    monkeypatch.setattr(resume, "kept", stop)
    monkeypatch.setattr(reconstruct, "State", stop)
    monkeypatch.setattr(reconstruct, "_prepared", lambda *_: (None, None))
    return names


def inputs_of(job, tmp_path):
    """Write what a job reads, one small file each, and its code; return the names of its directories."""
    given = json.loads(Path(job).read_text())
    directories = [Path(given[name]) for name in ("weights", "samples", "network", "data") if given.get(name)]
    for directory in directories:
        shutil.rmtree(directory, ignore_errors=True)
        filled(directory, b"one", given.get("recipe"))
    return [*directories, Path(given["code"])]


def filled(directory, content, recipe):
    artifacts.write_bytes(directory / "file.bin", content)
    artifacts.write_manifest(directory, ["file.bin"], place=str(directory), recipe=recipe)


def ask(stage, job, names):
    """Return what a job would go on with."""
    with pytest.raises(Stop):
        call(stage, {"job": job})
    return names[-1]


def check_all_count(stage, job, setting, tmp_path, names):
    """Change each input of a job, its code and a setting: each time it goes on with something else."""
    *directories, code = inputs_of(job, tmp_path)
    recipe = json.loads(Path(job).read_text()).get("recipe")
    found = {ask(stage, job, names)}
    assert ask(stage, job, names) in found, "the same job goes on with the same work"
    for directory in directories:
        filled(directory, b"two", recipe)  # as many bytes
        found.add(ask(stage, job, names))
    code.write_text("other code")
    found.add(ask(stage, job, names))
    given = json.loads(Path(job).read_text())
    given[setting[0]][setting[1]] = setting[2]
    Path(job).write_text(json.dumps(given))
    found.add(ask(stage, job, names))
    assert len(found) == 1 + len(directories) + 2


def test_what_a_stage_keeps_is_of_this_job_alone(tmp_path, monkeypatch, kept):
    work = Work(TESTS / "smoke.yaml", tmp_path)
    monkeypatch.chdir(tmp_path)
    run = work.run(*IMAGES, "b-flexround-w4")
    check_all_count("reconstruct", work.inputs("reconstruct", run)["job"], ("hyper", "iters", 7), tmp_path, kept)
    check_all_count("evaluate", work.inputs("evaluate", run)["job"], ("run", "seed", 7), tmp_path, kept)


def test_what_a_training_keeps_is_of_this_job_alone(tmp_path, monkeypatch, kept):
    work = Work(TESTS / "lm_scale.yaml", tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(finetune.build, "architecture", lambda *_: None)
    job = work.inputs("finetune", *TEXTS)["job"]
    check_all_count("finetune", job, ("train", "epochs", 7), tmp_path, kept)
    data = Path(json.loads(Path(job).read_text())["data"])
    (data / "file.bin").write_bytes(b"2wo")
    with pytest.raises(InputError, match=r"file\.bin: its sha256"):
        call("finetune", {"job": job})


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    """Make what the stages read: data, a network and samples."""
    found = Work(TESTS / "smoke.yaml", tmp_path_factory.mktemp("work"))
    run = found.run(*IMAGES, "b-rtn-w4")
    found.weights(*IMAGES), found.samples(IMAGES[0], found.plan.hyper(run)[0].samples)
    return found


def test_a_network_of_another_recipe_of_the_same_name_is_not_evaluated(tmp_path, monkeypatch, kept):
    work = Work(TESTS / "smoke.yaml", tmp_path)
    monkeypatch.chdir(tmp_path)
    job = work.inputs("evaluate", work.run(*IMAGES, "b-flexround-w4"))["job"]
    network = inputs_of(job, tmp_path)[0]
    filled(network, b"one", json.loads(Path(job).read_text())["recipe"] | {"w_bits": 3})
    with pytest.raises(InputError, match=rf"{network}: its manifest says recipe = .*'w_bits': 3.*; delete {network} "):
        call("evaluate", {"job": job})


@pytest.mark.parametrize(
    ("stage", "read"),
    [
        ("calibrate", "data"),
        ("evaluate", "data"),
        ("evaluate", "network"),
        ("reconstruct", "weights"),
        ("reconstruct", "samples"),
    ],
)
def test_what_is_read_is_compared_with_its_hash(work, monkeypatch, stage, read):
    """One bit of the largest file, so that no size tells; and the way out is the whole output of a rule."""
    monkeypatch.chdir(work.root)
    run = work.run(*IMAGES, "b-rtn-w4")
    samples = work.plan.hyper(run)[0].samples
    inputs = {
        "calibrate": lambda: work.inputs("calibrate", IMAGES[0], samples, 0),
        "evaluate": lambda: work.inputs("evaluate", work.run(*IMAGES)),
        "reconstruct": lambda: work.inputs("reconstruct", run),
    }[stage]()
    directory = Path(json.loads(Path(inputs["job"]).read_text())[read])
    file = max(directory.iterdir(), key=lambda path: path.stat().st_size)
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    try:
        with pytest.raises(
            InputError, match=rf"{file.name}: its sha256 is not .*; delete {directory} and run the same"
        ):
            call(stage, inputs)
    finally:
        file.write_bytes(content)
    assert str(directory) in inputs.values()


def test_metrics_are_there_only_when_all_is(tmp_path, monkeypatch):
    """A kill while predictions are written leaves nothing that could be taken for a result."""

    def killed(arrays, path):
        path.write_bytes(b"half")
        raise Stop

    with monkeypatch.context() as patch:
        patch.setattr(evaluate, "save_file", killed)
        with pytest.raises(Stop):
            evaluate._write(tmp_path, {"scores/top1": np.zeros(3)}, {"metrics": {"top1": 0.0}})
    assert list(tmp_path.iterdir()) == []
    evaluate._write(tmp_path, {"scores/top1": np.zeros(3)}, {"metrics": {"top1": 0.0}})
    predictions = artifacts.read_formatted(tmp_path / "metrics.json")["predictions"]
    assert predictions == {"sha256": artifacts.sha256(tmp_path / "predictions.safetensors")}
