"""What stages record, refuse and keep: a network of a small scale, from its data to the gate and what is behind it."""

import json
from argparse import Namespace
from pathlib import Path

import pytest
import torch
from stage_calls import Work, call

from flexround.errors import InputError
from flexround.io import artifacts, resume
from flexround.reconstruct.phases import WeightPhase
from flexround.settings import layout
from flexround.stages import evaluate, finetune, reconstruct
from flexround.tasks import protocol

TESTS = Path(__file__).parent
IMAGES = "imagenet", "mobilenetv2-brecq"
TEXTS = "corpus", "gpt-neo-125m"


class Stop(Exception):
    """A stage has said where it keeps its work."""


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    """Make what the stages read: data, a network that was trained for a moment, and samples."""
    root = tmp_path_factory.mktemp("work")
    text = (TESTS / "smoke.yaml").read_text()
    (root / "smoke.yaml").write_text(text.replace("train: 640, val: 200", "train: 128, val: 64"))
    found = Work(root / "smoke.yaml", root)
    found.weights(*IMAGES), found.samples(IMAGES[0], 64)
    return found


# what a job goes on with


@pytest.fixture
def kept(monkeypatch):
    """Make a stage stop where it begins to compute; return the names of what it would have gone on with."""
    names = []

    def stop(directory, *rest):
        names.append(rest[0] if rest else directory.name)
        raise Stop

    monkeypatch.setattr(resume, "kept", stop)
    monkeypatch.setattr(reconstruct, "State", stop)
    monkeypatch.setattr(reconstruct, "prepared", lambda *_: (None, None))
    monkeypatch.setattr(finetune.build, "architecture", lambda *_: None)
    return names


def filled(directory, content, recipe):
    artifacts.write_bytes(directory / "file.bin", content)
    artifacts.write_manifest(directory, ["file.bin"], place=str(directory), recipe=recipe)


@pytest.mark.parametrize(
    ("stage", "scale", "names", "setting"),
    [
        ("reconstruct", "smoke", (*IMAGES, "b-flexround-w4"), ("hyper", "iters")),
        ("evaluate", "smoke", (*IMAGES, "b-flexround-w4"), ("run", "seed")),
        ("finetune", "lm_scale", TEXTS, ("train", "epochs")),
    ],
)
def test_what_a_stage_keeps_is_of_this_job_alone(tmp_path, monkeypatch, kept, stage, scale, names, setting):
    """Each input, the code or a setting is another one: each time it goes on with something else."""
    monkeypatch.chdir(tmp_path)
    work = Work(TESTS / f"{scale}.yaml", tmp_path)
    job = Path(work.inputs(stage, *([work.run(*names)] if scale == "smoke" else names)).file)
    settings = json.loads(job.read_text())
    directories = [Path(settings[name]) for name in ("weights", "samples", "network", "data") if settings.get(name)]
    recipe = settings.get("recipe")
    for directory in directories:
        filled(directory, b"one", recipe)

    def ask():
        with pytest.raises(Stop):
            call(stage, job)

    ask(), ask()
    assert len(set(kept)) == 1, "the same job goes on with the same work"
    for directory in directories:
        filled(directory, b"two", recipe)  # as many bytes
        ask()
    for place, name, value in ((settings["code"], "digest", "another"), (settings[setting[0]], setting[1], 7)):
        place[name] = value
        job.write_text(json.dumps(settings))
        ask()
    assert len(set(kept)) == len(kept) - 1 == 1 + len(directories) + 2


def test_what_was_learned_is_kept_where_code_changed_meanwhile(work, monkeypatch):
    run, blocks = work.run(*IMAGES, "b-rtn-w4", 7), []
    out = work.root / layout.quantized_dir(run)
    monkeypatch.setattr(WeightPhase, "learn", lambda *a, learn=WeightPhase.learn: [blocks.append(1), learn(*a)][1])

    def changed():
        raise InputError("the code has changed")

    work.gate(*IMAGES), work.samples(IMAGES[0], 64, 7)
    with pytest.raises(InputError, match="the code has changed"):
        work.do("reconstruct", run, out=out, confirm=changed)
    assert not (out / "manifest.json").exists()
    assert blocks
    blocks.clear()
    work.do("reconstruct", run, out=out)
    assert not blocks
    assert (out / "manifest.json").exists()
    assert not [path for path in (work.root / ".state").rglob("*") if path.is_file()]


# what is read and written


@pytest.mark.parametrize(
    ("stage", "read"),
    [
        ("finetune", "data"),
        ("gate", "weights"),
        ("calibrate", "data"),
        ("evaluate", "network"),
        ("reconstruct", "samples"),
    ],
)
def test_what_is_read_is_compared_with_its_hash(work, monkeypatch, stage, read):
    """One bit of the largest file, so that no size tells; and the way out is the whole output of a rule."""
    monkeypatch.chdir(work.root)
    arguments = {
        "calibrate": (IMAGES[0], 64, 0),
        "evaluate": (work.run(*IMAGES),),
        "reconstruct": (work.run(*IMAGES, "b-rtn-w4"),),
    }
    inputs = work.inputs(stage, *arguments.get(stage, IMAGES))
    directory = Path(json.loads(Path(inputs.file).read_text())[read])
    file = max(directory.iterdir(), key=lambda path: path.stat().st_size)
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    message = rf"{file.name}: its sha256 is not .*; delete {directory} and run the same"
    try:
        with pytest.raises(InputError, match=message):
            call(stage, inputs.file)
    finally:
        file.write_bytes(content)
    assert str(directory) in inputs.reads


def test_metrics_are_there_only_when_all_is(work, monkeypatch):
    """A kill while predictions are written leaves no file that could be taken for a result."""

    def killed(arrays, path):
        path.write_bytes(b"half")
        raise Stop

    out = work.root / layout.evaluated_dir(work.run(*IMAGES))
    with monkeypatch.context() as patch:
        patch.setattr(evaluate, "save_file", killed)
        with pytest.raises(Stop):
            work.evaluated(*IMAGES)
    assert list(out.iterdir()) == []
    predictions = artifacts.read_json(work.evaluated(*IMAGES, again=True) / "metrics.json")["predictions"]
    assert predictions == {"sha256": artifacts.sha256(out / "predictions.safetensors")}


# the gate


@pytest.fixture
def bounded(work):
    """Return a function that makes the work under other bounds; what an earlier gate wrote goes."""

    def make(**bounds):
        gates = tuple(rule.model_copy(update=bounds) for rule in work.params.scale.gates)
        changed = work.params._replace(scale=work.params.scale.model_copy(update={"gates": gates}))
        made = Work("", work.root, changed)
        (made.root / made.plan.gate(made.run(*IMAGES))).unlink(missing_ok=True)
        return made

    return make


def test_a_network_inside_its_bounds_passes(bounded):
    work = bounded(min=0, max=100)
    record = artifacts.read_json(work.gate(*IMAGES))
    assert record["metrics"] == work.metrics(*IMAGES)["metrics"]
    assert record["names"] == ["smoke", *IMAGES]
    value = record["metrics"]["top1"]
    again = artifacts.read_json(bounded(min=value, max=value).gate(*IMAGES))  # a bound itself passes
    assert again == record, "other bounds make nothing stale"


def test_a_network_outside_its_bounds_is_not_quantized(bounded):
    work = bounded(min=100.5, max=101.0)
    work.metrics(*IMAGES)
    before = {*work.root.rglob("*")}
    with pytest.raises(InputError, match=r"full-precision top1 is .*, expected 100.5 to 101.0"):
        work.quantized(*IMAGES, "b-rtn-w4")
    made = {path.relative_to(work.root).parts[0] for path in {*work.root.rglob("*")} - before}
    assert made <= {".jobs"}, "nothing is written but how the job would be"


# select


class Scorer:
    """A task whose first metric is written in the network's file."""

    head = {}

    def evaluate(self, model, data, device, batch, source, split):
        assert split == "heldout", "never the test set"
        value = float((source / "weights-000.safetensors").read_text())
        return protocol.Evaluation(metrics={"ppl": value, "acc": 0.0}, stderr={}, n_examples={}, scores={})


def test_the_best_candidate_on_the_held_out_part_is_taken(work, tmp_path, monkeypatch):
    """A lower perplexity is better; of equal candidates the first is taken."""
    monkeypatch.setattr(protocol, "build", lambda _: Scorer())
    monkeypatch.setattr("flexround.reconstruct.network.quantized", lambda *_: torch.nn.Identity())
    monkeypatch.chdir(tmp_path)
    values = {"a": 71.0, "b": 70.0, "c": 70.0}
    for name, value in values.items():
        artifacts.write_text(Path(name, "weights-000.safetensors"), str(value))
        artifacts.write_manifest(Path(name), ["weights-000.safetensors"], place=name, made_of=name)
    settings = json.loads(Path(work.inputs("evaluate", work.run(*IMAGES, "b-rtn-w4")).file).read_text())
    artifacts.write_manifest(Path(settings["data"]), [])
    settings = {key: settings[key] for key in settings.keys() - {"recipe", "network", "code"}}
    settings |= {"networks": {name: name for name in values}, "out": "out"}
    Path("select.json").write_text(json.dumps(settings))
    evaluate.select(Namespace(job=Path("select.json"), gpus=0, jobs_per_gpu=1))
    manifest = artifacts.read_manifest(Path("out"))
    assert Path("out/weights-000.safetensors").samefile("b/weights-000.safetensors")
    assert manifest["made_of"] == "b"
    assert manifest["selected"] == {"recipe": "b", "metric": "ppl", "heldout": values}
