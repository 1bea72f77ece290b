"""Networks on disk: what ``save`` replaces, what ``load`` refuses, and that neither leaves anything half done."""

import errno
import functools
import json
import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import safetensors.torch
import torch
from own_networks import FEW, Pictures, llama, made, pictures, words
from tensors import randn
from torch import nn

import flexround
from flexround.errors import InputError
from flexround.io import artifacts
from flexround.reconstruct import codes

PART, CONV = "weights-001.safetensors", "weight/stage.0.conv1"


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
    with pytest.raises(InputError, match=r"out: can't be written \(No space left"):
        other.save(saved)
    assert contents(saved.parent) == before
    monkeypatch.undo()
    other.save(saved)
    assert torch.equal(flexround.load(saved, made(Pictures))(pictures()), other(pictures()))
    assert os.listdir(saved.parent) == ["out"]


@pytest.mark.parametrize("place", ["file", "file/out"])
def test_a_file_in_the_place_of_a_directory_is_one_message(tmp_path, place, other):
    (tmp_path / "file").write_text("mine")
    for write in (other.save, lambda directory: other.export("torch", directory)):
        with pytest.raises(InputError, match=rf"{place}: can't be written"):
            write(tmp_path / place)
    assert contents(tmp_path) == {tmp_path / "file": b"mine"}


# changes of a saved network


def manifest(directory, edit):
    """Edit the content of the manifest, which is sealed again."""
    content = artifacts.read_formatted(directory / "manifest.json")
    edit(content)
    artifacts.write_formatted(directory / "manifest.json", content)


def listed(directory, name, make=lambda path: None):
    """Make a file and list it."""
    make(directory / name)
    manifest(directory, lambda content: content["files"].update({name: {"bytes": 0, "sha256": ""}}))


def part(directory, function):
    """Change the bytes of a file, and its entry with them."""
    path = directory / PART
    path.write_bytes(function(path.read_bytes()))
    entry = {PART: {"bytes": path.stat().st_size, "sha256": artifacts.sha256(path)}}
    manifest(directory, lambda content: content["files"].update(entry))


def inside(directory, leaf, edit_tensor=lambda value: value, edit_grids=lambda grids: None):
    """Change a tensor of a convolution, or the grids of its file, likewise; its codes are not packed."""
    found, key = codes.read(directory / PART), f"{CONV}:{leaf}"
    grids = {key: {"qmin": one.grid.qmin, "qmax": one.grid.qmax} for key, one in found.quantized.items()}
    edit_grids(grids)
    tensors = found.tensors()
    tensors[key] = edit_tensor(tensors[key])
    part(directory, lambda _: safetensors.torch.save(tensors, {"grids": json.dumps(grids)}))


def grids(directory, edit):
    inside(directory, "codes", edit_grids=edit)


def pipe(directory, name):
    (directory / name).unlink()
    os.mkfifo(directory / name)


def write(directory, name, text):
    (directory / name).write_text(text)


def bare(content):
    """Return a file of tensors without its metadata."""
    return safetensors.torch.save(safetensors.torch.load(content))


WRONG_CODE = f"{PART}: {CONV}: a code is no integer from 0 to 15"


@pytest.mark.parametrize(
    ("change", "arguments", "message"),
    [
        (listed, ["/etc/hostname"], r"hostname: no file of its own beside"),
        (listed, ["../secret", Path.touch], r"\.\./secret: no file of its own beside"),
        (listed, ["link", lambda path: path.symlink_to("/etc/hostname")], "link: no file of its own beside"),
        (pipe, [PART], f"{PART}: no file of its own beside"),
        (pipe, ["record.json"], r"record\.json: can't be read"),
        (write, ["record.json", "{}"], "record.blocks"),
        (manifest, [lambda found: found.pop("recipe")], "recipe"),
        (part, [bare], f"{PART}: its metadata have no grids"),
        (part, [lambda content: content[:-100]], f"{PART}: damaged"),
        (grids, [lambda found: found.update({"weight/foreign": found[CONV]})], "damaged: .*weight/foreign"),
        (grids, [lambda found: found.pop(CONV)], r"first differing tensors: stage\.0\.conv1\.weight"),
        (inside, ["codes", lambda codes: codes + 100], WRONG_CODE),
        (inside, ["step", torch.neg], f"{PART}: {CONV}: a step is not positive"),
        (inside, ["step", lambda step: step / 0], f"{PART}: {CONV}:step holds NaN or Inf"),
        (inside, ["zero_point", lambda point: point - 16], f"{PART}: {CONV}: a zero point is no integer"),
    ],
)
def test_what_save_did_not_write_is_one_message(saved, change, arguments, message):
    change(saved, *arguments)
    with pytest.raises(InputError, match=message):
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
