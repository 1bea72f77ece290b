"""Grids and the step search against torch's own fake quantization and an exhaustive search."""

import math

import pytest
import torch
from exhaustive_search import exhaustive
from tensors import randn

import flexround
from flexround.quant import search
from flexround.quant.grid import Scheme, clip, grid_from_range, nearest_codes
from flexround.quant.search import initial_grid, mean_error


@pytest.mark.parametrize("bits", [2, 5, 8])
def test_symmetric_step_and_range_follow_the_formula(bits):
    grid = grid_from_range(torch.tensor(-3.0), torch.tensor(2.0), Scheme(bits), has_negatives=True)
    assert (grid.qmin, grid.qmax) == (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    assert grid.step.item() == pytest.approx(3.0 / ((2**bits - 1) / 2))
    assert grid.zero_point.item() == 0


@pytest.mark.parametrize("axis", [None, 0])
def test_asymmetric_codes_are_those_of_torchs_own_fake_quantize(axis):
    x = randn(6, 5, 3, 3) * torch.arange(1, 7).view(6, 1, 1, 1) + 0.7
    grid = initial_grid(x, Scheme(4, symmetric=False, axis=axis), "minmax")
    step, zero_point = grid.step, grid.zero_point.int()
    if axis is None:
        theirs = torch.fake_quantize_per_tensor_affine(x, step, zero_point, 0, 15)
    else:
        theirs = torch.fake_quantize_per_channel_affine(x, step.flatten(), zero_point.flatten(), axis, 0, 15)
    torch.testing.assert_close(nearest_codes(x, grid) * step, theirs, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("value", [0.0, 0.25, -3.0])
def test_constant_tensors_are_off_by_half_a_step_at_most(symmetric, value):
    x = torch.full((4, 4), value)
    grid = initial_grid(x, Scheme(4, symmetric))
    assert torch.isfinite(grid.step)
    assert ((nearest_codes(x, grid) * grid.step - x).abs() <= grid.step / 2 + 1e-7).all()


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize(("bits", "p"), [(2, 2.0), (3, 2.4), (5, 2.4)])
@pytest.mark.parametrize("shape", ["normal", "one-sided", "heavy", "channels of one sign"])
def test_the_search_is_within_a_percent_of_the_exhaustive_one(bits, symmetric, p, shape):
    x = randn(300, seed=bits)
    one_sign = torch.stack([x, x.abs() + 0.2, -x.abs() - 0.5, torch.full_like(x, 0.95), torch.full_like(x, -3)])
    x = {"normal": x, "one-sided": x.abs(), "heavy": x**3 + 0.5, "channels of one sign": one_sign}[shape]
    axis = 0 if x.ndim > 1 else None
    _, least = exhaustive(torch.atleast_2d(x), bits, symmetric, p)
    error = mean_error(x, initial_grid(x, Scheme(bits, symmetric, axis), "mse", p), axis, p)
    assert (error.flatten() <= 1.01 * least + 1e-12).all()


@pytest.mark.parametrize("p", [2.0, 2.4])
def test_a_large_tensor_compared_in_pieces_has_the_same_grid(monkeypatch, p):
    x = randn(50, 7, 30)
    whole = initial_grid(x, Scheme(4), "mse", p)
    expected = mean_error(x, whole, None, p)
    monkeypatch.setattr(search, "PIECE", 1000)
    assert torch.equal(initial_grid(x, Scheme(4), "mse", p).step, whole.step)
    torch.testing.assert_close(mean_error(x, whole, None, p), expected)


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("symmetric", [True, False])
def test_each_channel_is_searched_as_if_it_were_alone(monkeypatch, bits, symmetric):
    x = randn(12, 300) ** 3 * torch.tensor([0.1, 1, 5, 10]).repeat(3).unsqueeze(1)
    x[4:8] = x[4:8].abs()  # a chunk of one-sided channels in a two-sided tensor
    scheme, real, tried = Scheme(bits, symmetric, axis=0), search.mean_error, []
    with monkeypatch.context() as patch:
        patch.setattr(search, "MARGIN", math.inf)  # nothing is passed over
        together = initial_grid(x, scheme)
    monkeypatch.setattr(search, "mean_error", lambda *arguments: tried.append(1) or real(*arguments))
    monkeypatch.setattr(search, "CHUNK", 4 * 300)
    chunks = initial_grid(x, scheme)
    assert torch.equal(chunks.step, together.step)
    assert torch.equal(chunks.zero_point, together.zero_point)
    if bits == 8 and not symmetric:
        assert len(tried) / 3 < 100, "of 125 and the pattern's"
    for row in (0, 1, 3, 8):  # two-sided ones: alone, others are no part of a two-sided tensor
        alone = initial_grid(x[row : row + 1], scheme)
        torch.testing.assert_close(together.step[row], alone.step[0])
        assert together.zero_point[row] == alone.zero_point[0]


@pytest.mark.parametrize("bounds", [(-8, 7), (torch.tensor([[-8.0], [-3.0]]), torch.tensor([[7.0], [12.0]]))])
def test_clip_equals_clamp_and_keeps_gradients_at_the_bounds(bounds):
    x = (10 * randn(2, 100)).round().requires_grad_()
    expected = torch.clamp(x, *bounds)
    found = flexround.clip(x, *bounds)
    found.sum().backward()
    assert torch.equal(found, expected)
    assert torch.equal(x.grad, (x == expected).float())
    assert torch.equal(clip(x.detach(), *bounds), expected)
