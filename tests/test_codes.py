"""Codes on disk: packed without loss, at their size, described by the file itself."""

import json

import pytest
import torch
import toy
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import save_file

from flexround.errors import InputError
from flexround.quant.grid import Grid
from flexround.reconstruct import codes
from flexround.reconstruct.codes import Part, Stored
from flexround.reconstruct.engine import reconstruct
from flexround.reconstruct.state import State


@given(
    bits=st.integers(2, 7),
    signed=st.booleans(),
    shape=st.lists(st.integers(0, 9), max_size=4),
    seed=st.integers(0, 2**31),
)
def test_codes_come_back_as_they_were(bits, signed, shape, seed):
    qmin = -(2 ** (bits - 1)) if signed else 0
    generator = torch.Generator().manual_seed(seed)
    kind = torch.int8 if signed else torch.uint8
    drawn = torch.randint(qmin, qmin + 2**bits, shape, generator=generator).to(kind)
    planes = codes.pack(drawn, qmin, bits)
    assert planes.shape == (bits, -(-drawn.numel() // 8))
    found = codes.unpack(planes, qmin, shape)
    assert found.dtype == kind
    assert found.shape == drawn.shape
    assert torch.equal(found, drawn)


def sample(bits, shape=(64, 33, 3, 3)):
    low = -(2 ** (bits - 1))
    drawn = torch.randint(low, -low, shape, generator=torch.Generator().manual_seed(0)).to(torch.int8)
    grid = Grid(torch.ones(()), torch.zeros(()), low, -low - 1)
    return Part({"weight/a": Stored(grid, drawn, torch.ones(()))}, {"a.bias": torch.ones(3)})


@pytest.mark.parametrize(("bits", "part"), [(2, 1 / 4), (3, 3 / 8), (4, 1 / 2), (8, 1)])
def test_a_file_takes_bits_of_a_byte_for_each_code_and_says_so(tmp_path, bits, part):
    stored, path = sample(bits), tmp_path / "x.safetensors"
    path.write_bytes(codes.encode(stored))
    tensors = stored.tensors()
    assert path.stat().st_size < part * tensors["weight/a:codes"].numel() + 800, "tensors and header"
    assert codes.encode(stored) == path.read_bytes()
    found = codes.read(path).tensors()
    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[key], tensors[key]) for key in tensors)
    assert codes.shapes(path) == ({"a.bias": (3,), "a.weight": (64, 33, 3, 3)}, ["weight/a"])
    with safe_open(path, framework="pt") as file:
        told = json.loads(file.metadata()["grids"])["weight/a"]
    low = -(2 ** (bits - 1))
    assert told == {"qmin": low, "qmax": -low - 1} | ({} if bits == 8 else {"shape": [64, 33, 3, 3]})


def test_planes_that_do_not_fit_are_refused(tmp_path):
    path = tmp_path / "x.safetensors"
    path.write_bytes(codes.encode(sample(4)))
    with safe_open(path, framework="pt") as file:
        metadata, content = file.metadata(), {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    save_file(content | {"weight/a:codes": content["weight/a:codes"][:3].clone()}, path, metadata)
    with pytest.raises(InputError, match=r"x\.safetensors: .*the planes of weight/a:codes have shape \(3, 2376\)"):
        codes.read(path)


def test_a_reconstruction_stores_its_low_bit_codes_packed(tmp_path):
    with State(tmp_path, "f" * 16).opened() as state:
        reconstruct(toy.job(toy.recipe("B", "rtn", 4)), toy.samples(), state)
        entry = next(entry for entry in state.entries if entry["position"] == "weights/001")
        with safe_open(state.directory / entry["file"], framework="pt") as file:
            assert file.get_slice("weight/body.0.conv1:codes").get_shape() == [4, 8 * 8 * 9 // 8]
        assert state.part(entry).quantized["weight/body.0.conv1"].codes.shape == (8, 8, 3, 3)
