"""Codes on disk: packed without loss, described by the file itself; a stored network gives the very same outputs."""

import json

import pytest
import torch
import toy
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open

from flexround.errors import InputError, NumericalError
from flexround.io.artifacts import read_manifest
from flexround.models.surgery import attach
from flexround.quant.grid import Grid, Scheme, nearest_codes
from flexround.reconstruct import codes
from flexround.reconstruct.codes import Part, Stored
from flexround.reconstruct.engine import reconstruct
from flexround.reconstruct.state import State


@given(st.integers(2, 7), st.booleans(), st.lists(st.integers(0, 9), max_size=4), st.integers(0, 2**31))
def test_codes_come_back_as_they_were(bits, signed, shape, seed):
    qmin, kind = (-(2 ** (bits - 1)), torch.int8) if signed else (0, torch.uint8)
    drawn = torch.randint(qmin, qmin + 2**bits, shape, generator=torch.Generator().manual_seed(seed)).to(kind)
    planes = codes.pack(drawn, qmin, bits)
    assert planes.shape == (bits, -(-drawn.numel() // 8))
    found = codes.unpack(planes, qmin, shape)
    assert found.dtype == kind
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
    assert toy.same(found, tensors)
    with safe_open(path, framework="pt") as file:
        told = json.loads(file.metadata()["grids"])["weight/a"]
    low = -(2 ** (bits - 1))
    assert told == {"qmin": low, "qmax": -low - 1} | ({} if bits == 8 else {"shape": [64, 33, 3, 3]})


# networks


def quantized(directory, recipe, net=None, **hyper):
    """Return the directory of the result of a short reconstruction and the network it left in memory."""
    job = toy.job(recipe, net=net, **{"iters": 4, "a_iters": 4} | hyper)
    with State(directory / "state", "f" * 16).opened() as state:
        reconstruct(job, toy.samples(), state)
        state.publish(directory / "out", note=1)
    return directory / "out", job.model


def blank(**size):
    """Return a network whose every value is wrong."""
    model = toy.model(**size)
    for parameter in model.parameters():
        parameter.data.fill_(9.0)
    return model


@pytest.mark.parametrize(
    ("setting", "rounding", "scheme", "granularity"),
    [
        ("B", "flexround", "symmetric", "channel"),
        ("B", "rtn", "asymmetric", "channel"),
        ("Q", "flexround", "asymmetric", "tensor"),
        ("Q", "rtn", "symmetric", "tensor"),
    ],
)
def test_a_stored_network_gives_the_same_bits(tmp_path, setting, rounding, scheme, granularity):
    options = {"w_scheme": scheme, "a_scheme": scheme, "w_granularity": granularity}
    out, model = quantized(tmp_path, toy.recipe(setting, rounding, 3, 4), **options)
    fresh = blank()
    codes.load(out, fresh, toy.blocks(fresh))
    x = 2 * torch.randn(7, 3, 8, 8, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        assert not torch.equal(model(x), toy.model()(x))
        assert torch.equal(model(x), fresh(x))
    parts = [codes.read(path) for path in codes.files(out)]
    loaded = {key: stored for part in parts for key, stored in part.quantized.items()}
    weights = {key.removeprefix("weight/"): stored for key, stored in loaded.items() if key.startswith("weight/")}
    assert (len(weights), len(loaded)) == (6, 11)
    assert {name for part in parts for name in part.parameters} == {f"{name}.bias" for name in weights}
    for name, stored in weights.items():
        check_range(stored, toy.model().get_submodule(name).weight, scheme, granularity, name in ("stem", "head"))
        assert torch.equal(model.get_submodule(name).weight, fresh.get_submodule(name).weight), name
        assert torch.equal(model.get_submodule(name).weight, stored.values()), name
    assert read_manifest(out)["note"] == 1


def test_shifts_are_measured_from_the_zero_point_before_learning(tmp_path):
    fine = {"w_scheme": "asymmetric", "w_granularity": "channel", "optimizer": "sign", "lr": 0.05, "iters": 20}
    out, _ = quantized(tmp_path, toy.recipe("B", "signround", 3), **fine)
    weight, job = toy.model().body[0].conv1.weight.detach(), toy.job(toy.recipe(), **fine)
    grid = attach.weight_grid(weight, Scheme(3, False, 0), job.hyper.w_init, job.hyper.w_init_p)
    learned, nearest = codes.learned_and_nearest(out, "body.0.conv1", weight)
    stored = next(each for path in codes.files(out) if (each := codes.read(path).quantized.get("weight/body.0.conv1")))
    assert (stored.grid.zero_point != grid.zero_point).any(), "the case that is tested"
    shift = learned - stored.grid.zero_point - nearest_codes(weight, grid)
    assert torch.equal(learned - nearest, shift)


def check_range(stored, weight, scheme, granularity, end):
    """Codes in their range, with steps and zero points of their granularity."""
    bits, step, zero_point = 8 if end else 3, stored.grid.step, stored.grid.zero_point
    low = -(2 ** (bits - 1)) if scheme == "symmetric" else 0
    assert (stored.grid.qmin, stored.grid.qmax) == (low, low + 2**bits - 1)
    assert stored.codes.dtype == (torch.int8 if scheme == "symmetric" else torch.uint8)
    assert stored.codes.shape == weight.shape
    assert low <= stored.codes.min() < stored.codes.max() <= low + 2**bits - 1
    shape = (len(weight), *[1] * (weight.ndim - 1)) if granularity == "channel" else ()
    assert step.shape == zero_point.shape == stored.initial_step.shape == shape
    assert step.dtype == torch.float32
    assert (step > 0).all()
    assert torch.equal(zero_point, zero_point.round())
    assert bool((zero_point == 0).all()) == (scheme == "symmetric")


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("change", [-300.0, 0.4, float("nan")])
def test_codes_that_are_no_integers_of_the_grid_are_not_stored(symmetric, change):
    """They would wrap, be cut, or be another network than the one that was learned."""
    weight = torch.linspace(-1, 3, 40).view(4, 10)
    grid = attach.weight_grid(weight, attach.Scheme(4, symmetric, None), "minmax", 2.0)
    nearest = nearest_codes(weight, grid)
    nearest[2, 3] += change
    with pytest.raises(NumericalError, match=r"layer\.1: 1 of 40 codes are no integers from"):
        codes.store_codes("layer.1", nearest, grid)


@pytest.mark.parametrize(("size", "named"), [({"depth": 3}, r"body\.2\.conv1"), ({"channels": 4}, r"(stem|body\.0)")])
def test_the_result_of_another_network_is_refused_by_its_tensors(tmp_path, size, named):
    stored, _ = quantized(tmp_path, toy.recipe("Q", "rtn", 3, 4), iters=0)
    model = blank(**size)
    with pytest.raises(InputError, match=f"another model; first differing tensors: .*{named}"):
        codes.load(stored, model, toy.blocks(model))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_value_that_is_not_finite_is_not_stored(bad):
    net = toy.model()
    net.head.bias.data[1] = bad
    with pytest.raises(InputError, match=r"parameter/head\.bias holds NaN or Inf"):
        codes.part({}, net, ["head.bias"])


def test_a_result_replaces_an_older_one_by_links(tmp_path):
    out, _ = quantized(tmp_path, toy.recipe("B", "rtn", 3, 4))
    assert len(list(out.glob("steps-*"))) == 4
    with State(tmp_path / "state", "e" * 16).opened() as state:
        reconstruct(toy.job(toy.recipe("B", "rtn", 3), iters=0), toy.samples(), state)
        state.publish(out)
        for name in read_manifest(out)["files"]:
            assert (out / name).samefile(state.directory / name)
    assert sorted(path.name for path in out.iterdir()) == sorted([*read_manifest(out)["files"], "manifest.json"])
