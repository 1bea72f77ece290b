"""The data, calibrate and finetune stages on a tiny scale."""

import hashlib

import pytest
import torch
import yaml
from stage_calls import Work

from flexround.errors import InputError
from flexround.io.artifacts import read_manifest
from flexround.mini.models import resnet18
from flexround.settings import schema
from flexround.settings.load import load_params, scale_path
from flexround.settings.validation import read_yaml
from flexround.tasks import protocol


@pytest.fixture
def scale(tmp_path):
    """Return the path of a scale with 300 digits and one network, otherwise like the paper's."""
    settings = read_yaml(scale_path("paper")) | {"name": "tiny"}
    settings["tasks"] = {
        "imagenet": {"module": "flexround.mini.tasks.digits:Digits", "options": {"train": 300, "val": 50}}
    }
    model = {
        "factory": "flexround.mini.models:resnet18",
        "args": {"width": 8},  # fewer channels crash oneDNN for AVX2, docs/footguns.md
        "blocks": "flexround.models.resnet:blocks",
    }
    settings["checkpoints"] = {
        "resnet18-brecq": {"model": model},
        "resnet18-torchvision": {"model": model, "source": "resnet18-torchvision"},
    }
    rule = {"when": {"checkpoint": "resnet18-brecq"}, "set": {"epochs": 1, "lr": 0.1}, "source": "a test"}
    settings |= {"train": [rule], "gates": [{"metric": "top1", "min": 0, "max": 100}], "hyper": settings["hyper"][:3]}
    settings |= {"needs": [], "trials": []}
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(settings))
    return str(path)


def test_stages_from_data_to_samples_and_weights(scale, tmp_path):
    work = Work(scale, tmp_path)
    manifest = read_manifest(work.samples("imagenet", 20, 3))
    assert (manifest["seed"], manifest["samples"], manifest["task"]) == (3, 20, "imagenet")
    expected = protocol.draw_indices(300, 20, 3)
    assert manifest["indices_sha256"] == hashlib.sha256(expected.tobytes()).hexdigest()
    assert read_manifest(work.weights("imagenet", "resnet18-brecq"))["train"]["settings"]["epochs"] == 1


@pytest.mark.parametrize("stage", ["samples", "weights", "evaluated", "gate"])
def test_changed_data_is_refused_by_every_stage_that_reads_it(scale, tmp_path, stage):
    work = Work(scale, tmp_path)
    evaluated = stage in ("evaluated", "gate")
    if evaluated:
        work.weights("imagenet", "resnet18-brecq")
    labels = work.data("imagenet") / ("val_labels.npy" if evaluated else "train_labels.npy")
    content = bytearray(labels.read_bytes())
    content[-8] ^= 1  # the last label, its size as before
    labels.write_bytes(content)
    arguments = {
        "samples": ("imagenet", 20, 3),
        "weights": ("imagenet", "resnet18-brecq"),
        "evaluated": ("imagenet", "resnet18-brecq"),
        "gate": ("imagenet", "resnet18-brecq"),
    }[stage]
    with pytest.raises(InputError, match=rf"{labels.name}: its sha256 is not the one in its manifest"):
        getattr(work, stage)(*arguments)


def test_a_pinned_checkpoint_is_imported(scale, tmp_path):
    directory = tmp_path / "results/sources"
    directory.mkdir(parents=True)
    torch.save(resnet18(width=8, seed=5).state_dict(), directory / "w.pth")
    pinned = schema.Source(kind="checkpoint", location="ask", file="w.pth", revision="v1", licence="MIT")
    work = Work(scale, tmp_path, load_params(scale)._replace(sources={"resnet18-torchvision": pinned}))
    work.weights("imagenet", "resnet18-torchvision")
    model = work.model("imagenet", "resnet18-torchvision")
    torch.testing.assert_close(model.fc.weight, resnet18(width=8, seed=5).fc.weight, rtol=0, atol=0)
    (directory / "w.pth").write_bytes(b"other")
    with pytest.raises(InputError, match=r"w\.pth\.sha256 says"):
        work.weights("imagenet", "resnet18-torchvision", again=True)
