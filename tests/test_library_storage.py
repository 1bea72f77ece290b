"""Networks on disk: what ``save`` replaces, what ``load`` refuses, and that neither leaves anything half done."""

import errno
import functools
import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from own_networks import FEW, Pictures, llama, made, pictures, words
from tensors import randn
from torch import nn

import flexround
from flexround.errors import FlexRoundError, InputError
from flexround.io import artifacts
from flexround.reconstruct import codes

PART = "weights-001.safetensors"


@pytest.fixture(scope="module")
def quantized():
    """A network of asymmetric 4-bit weights and activations."""
    return flexround.quantize(made(Pictures), pictures(), "b-flexround-w4a4", w_scheme="asymmetric", **FEW)


@pytest.fixture(scope="module")
def other():
    """The same at round-to-nearest, on a symmetric grid."""
    return flexround.quantize(made(Pictures), pictures(), "b-rtn-w4", **FEW)


@pytest.fixture
def saved(quantized, tmp_path):
    return quantized.save(tmp_path / "out")


@pytest.fixture(scope="module")
def saved_llama(tmp_path_factory):
    return flexround.quantize(llama(), words(), "b-rtn-w4", **FEW).save(tmp_path_factory.mktemp("llama"))


def contents(directory):
    return {path: path.is_file() and path.read_bytes() for path in directory.rglob("*")}


@pytest.mark.parametrize("name", ["manifest.json", "theirs.safetensors", PART, "README.md"])
def test_save_replaces_nothing_that_it_did_not_write(saved, quantized, name):
    (saved / name).write_text("{}")
    before = contents(saved.parent)
    assert repr(quantized) == "Quantized(Pictures, flexround W4A4, 10 layers)"
    with pytest.raises(InputError, match="out: not empty"):
        quantized.save(saved)
    assert contents(saved.parent) == before


@pytest.mark.parametrize(
    ("module", "call", "good"),
    [
        (os, "replace", 1),
        (codes, "encode", 1),
        (artifacts, "write_manifest", 0),
        (Path, "rename", 0),
        (Path, "rename", 1),
    ],
)
def test_a_save_that_fails_leaves_the_old_network(saved, other, monkeypatch, module, call, good):
    before, original, calls = contents(saved.parent), getattr(module, call), []

    def full(*arguments, **keywords):
        calls.append(arguments)
        if len(calls) == good + 1:
            raise OSError(errno.ENOSPC, "full")
        return original(*arguments, **keywords)

    monkeypatch.setattr(module, call, full)
    with pytest.raises(OSError, match="full"):
        other.save(saved)
    assert contents(saved.parent) == before
    monkeypatch.undo()
    other.save(saved)
    assert torch.equal(flexround.load(saved, made(Pictures))(pictures()), other(pictures()))
    assert os.listdir(saved.parent) == ["out"]


# changes of a saved network


def manifest(directory, edit):
    """Edit the content of the manifest."""
    content = artifacts.read_json(directory / "manifest.json")
    edit(content)
    artifacts.write_formatted(directory / "manifest.json", content)


def listed(directory, name, make=lambda path: None):
    """Make a file and list it."""
    make(directory / name)
    manifest(directory, lambda content: content["files"].update({name: {"bytes": 0, "sha256": ""}}))


def pipe(directory, name):
    (directory / name).unlink()
    os.mkfifo(directory / name)


def write(directory, name, text):
    (directory / name).write_text(text)


@pytest.mark.parametrize(
    ("change", "arguments", "message"),
    [
        (listed, ["/etc/hostname"], r"hostname: no file of its own beside"),
        (listed, ["../secret", Path.touch], r"\.\./secret: no file of its own beside"),
        (listed, ["link", lambda path: path.symlink_to("/etc/hostname")], "link: no file of its own beside"),
        (pipe, [PART], f"{PART}: no file of its own beside"),
        (write, ["record.json", "{}"], "record.blocks"),
        (manifest, [lambda found: found.pop("recipe")], "recipe"),
    ],
)
def test_what_save_did_not_write_is_one_message(saved, change, arguments, message):
    change(saved, *arguments)
    with pytest.raises(FlexRoundError, match=message):
        flexround.load(saved, made(Pictures))


class Settled(nn.Module):
    """What it computes depends on plain attributes of all kinds."""

    def __init__(self, **changed):
        super().__init__()
        self.layer, self.norm, self.head = nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 3)
        given = {"shift": torch.zeros(8), "scale": np.ones(8), "dropped": 0.5, "slope": SimpleNamespace(value=0.1)}
        given |= {"activation": functools.partial(nn.functional.elu, alpha=1.0)} | changed
        self.norm.eps = given.pop("eps", 1e-5)
        for name, value in given.items():
            setattr(self, name, value)

    def forward(self, x):
        x = self.activation(self.layer(x + self.shift)) * torch.from_numpy(self.scale).float() * self.dropped
        return self.head(nn.functional.leaky_relu(self.norm(x), self.slope.value))


@pytest.mark.parametrize(
    "changed",
    [
        {"shift": torch.full((8,), 0.1)},
        {"scale": np.full(8, 1.01)},
        {"dropped": 0.51},
        {"slope": SimpleNamespace(value=0.11)},
        {"activation": functools.partial(nn.functional.elu, alpha=0.9)},
        {"eps": 1e-6},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_a_network_with_another_setting_is_not_loaded(tmp_path, changed):
    found = flexround.quantize(made(Settled), randn(16, 8), "b-rtn-w4", **FEW)
    out = found.save(tmp_path / "out")
    assert torch.equal(flexround.load(out, made(Settled))(randn(4, 8)), found(randn(4, 8)))
    with pytest.raises(InputError):
        flexround.load(out, made(functools.partial(Settled, **changed)))


@pytest.mark.parametrize(
    "changed",
    [
        {"num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 4},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 5.0}},
        {"rms_norm_eps": 1e-5},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_a_llama_with_another_configuration_is_not_loaded(saved_llama, changed):
    with pytest.raises(InputError):
        flexround.load(saved_llama, llama(**changed))


def test_a_network_that_is_one_layer_comes_back(tmp_path):
    layer, x = nn.Linear(16, 4), randn(8, 16)
    quantized = flexround.quantize(layer, x, "b-rtn-w4", **FEW)
    again = flexround.load(quantized.save(tmp_path / "out"), nn.Linear(16, 4))
    assert torch.equal(again(x), quantized(x))


def test_a_model_that_was_changed_since_is_not_written_as_it_was(tmp_path):
    other = flexround.quantize(made(Counting), pictures(), "b-rtn-w4", **FEW)
    other.model.to(torch.bfloat16)  # another type is no change
    other.save(tmp_path / "same")
    with torch.no_grad():
        other.model.head[-1].bias += 0.1
        for write in (other.save, lambda out: other.export("torch", out)):
            with pytest.raises(InputError):
                write(tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.float64])
def test_an_equal_network_of_any_type_is_taken_and_keeps_it(saved, saved_llama, quantized, kind):
    model = made(Pictures).train().to(kind)
    (saved / "README.md").write_text("mine")
    assert flexround.load(saved, model).origin == quantized.origin
    for name, value in model.state_dict().items():
        assert value.dtype == (torch.float32 if name.endswith("raw_step") else kind), name
        assert torch.equal(value, quantized.model.state_dict()[name].to(value.dtype)), name
    with pytest.raises(InputError, match="already"):
        flexround.load(saved, model)
    model = llama(use_cache=False, attention_dropout=0.5, attn_implementation="eager").train().to(kind)
    for _ in "12":  # also over quantized weights
        assert flexround.load(saved_llama, model)(words()).logits.dtype == kind


class Counting(Pictures):
    """Counts its calls, also in a buffer, and keeps what it has learned of its input."""

    def __init__(self):
        super().__init__()
        self.calls = 0
        self.register_buffer("passes", torch.zeros(()))

    def forward(self, x):
        self.passes.add_(1)
        self.calls, self.size = self.calls + 1, list(x.shape[1:])
        return super().forward(x)


def test_an_equal_network_that_changes_its_attributes_is_taken(tmp_path):
    found = flexround.quantize(made(Counting), pictures(), "b-rtn-w4", **FEW)
    out, used = found.save(tmp_path / "out"), made(Counting)
    used(pictures())
    for model in (made(Counting), used):
        assert torch.equal(flexround.load(out, model)(pictures()), found(pictures()))
