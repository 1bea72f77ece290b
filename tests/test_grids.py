"""Grids and the step search against their formulas and a brute-force oracle."""

import math

import pytest
import torch
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
    assert (nearest_codes(torch.zeros_like(x), grid) == 0).all()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        *((lambda bits=bits: Scheme(bits), f"bits={bits}") for bits in (0, 1, 9, 17)),
        (lambda: initial_grid(torch.tensor([1.0, float("nan"), 2.0]), Scheme(4)), "1 of 3 values are NaN"),
        (lambda: initial_grid(torch.empty(0), Scheme(4)), "empty"),
        (lambda: initial_grid(torch.ones(3), Scheme(4), "ems"), "minmax, mse or mse-exact"),
    ],
)
def test_impossible_bits_values_and_methods_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("value", [0.0, 0.25, -3.0])
def test_constant_tensors_are_represented_exactly_or_to_half_a_step(symmetric, value):
    x = torch.full((4, 4), value)
    grid = initial_grid(x, Scheme(4, symmetric))
    assert torch.isfinite(grid.step)
    assert ((nearest_codes(x, grid) * grid.step - x).abs() <= grid.step / 2 + 1e-7).all()


def brute_force(x, bits, symmetric, p):
    """Independent oracle: the least error of all ranges and zero points, in float64."""
    x, levels, best = x.double(), 2**bits - 1, math.inf
    low, high = min(x.min().item(), 0), max(x.max().item(), 0)
    for i in range(1, 101):
        if symmetric and low < 0:
            step, zero = max(-low, high) * i / 100 / (levels / 2), torch.tensor([[2 ** (bits - 1)]])
        elif symmetric or low == 0:
            step, zero = high * i / 100 / levels, torch.tensor([[0]])
        else:
            step, zero = (high - low) * i / 100 / levels, torch.arange(levels + 1).unsqueeze(1)
        codes = (x / step).round().clamp(-zero, levels - zero)
        best = min(best, ((codes * step - x).abs() ** p).mean(1).min().item())
    return best


@pytest.mark.parametrize("p", [2.0, 2.4])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("shape", ["normal", "one-sided", "heavy"])
def test_exact_search_equals_brute_force_and_the_fast_one_is_within_a_percent(bits, symmetric, p, shape):
    x = randn(600, seed=bits)
    x = {"normal": x, "one-sided": x.abs(), "heavy": x**3 + 0.5}[shape]
    oracle, scheme = brute_force(x, bits, symmetric, p), Scheme(bits, symmetric)
    assert mean_error(x, initial_grid(x, scheme, "mse", p), None, p).item() <= 1.01 * oracle
    if bits < 8:  # which would take seconds
        exact = mean_error(x, initial_grid(x, scheme, "mse-exact", p), None, p).item()
        assert exact == pytest.approx(oracle, rel=1e-4)


@pytest.mark.parametrize("p", [2.0, 2.4])
def test_a_large_tensor_compared_in_pieces_has_the_same_grid(monkeypatch, p):
    x = randn(50, 7, 30)
    whole = initial_grid(x, Scheme(4), "mse", p)
    expected = mean_error(x, whole, None, p)
    monkeypatch.setattr(search, "PIECE", 1000)
    found = initial_grid(x, Scheme(4), "mse", p)
    assert torch.equal(found.step, whole.step)
    torch.testing.assert_close(mean_error(x, found, None, p), expected)


@pytest.mark.parametrize("symmetric", [True, False])
def test_per_channel_search_equals_the_search_of_each_channel_alone(symmetric):
    x = randn(6, 200) * torch.tensor([[0.1], [1.0], [0.0], [10.0], [0.5], [3.0]])
    together = initial_grid(x, Scheme(3, symmetric, axis=0))
    for row in range(6):
        alone = initial_grid(x[row : row + 1], Scheme(3, symmetric, axis=0))
        torch.testing.assert_close(together.step[row], alone.step[0])
        assert together.zero_point[row] == alone.zero_point[0]
    assert (nearest_codes(x, together)[2] == 0).all()


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("symmetric", [True, False])
def test_passing_over_hopeless_ranges_and_searching_in_chunks_change_nothing(monkeypatch, bits, symmetric):
    x = randn(12, 300) ** 3
    x[4:8] = x[4:8].abs()  # a chunk of one-sided channels in a two-sided tensor
    scheme = Scheme(bits, symmetric, axis=0)
    monkeypatch.setattr(search, "MARGIN", math.inf)
    everything = initial_grid(x, scheme)
    monkeypatch.undo()
    tried = []
    real = search.mean_error
    monkeypatch.setattr(search, "mean_error", lambda *arguments: tried.append(1) or real(*arguments))
    monkeypatch.setattr(search, "CHUNK", 4 * 300)
    chunks = initial_grid(x, scheme)
    assert torch.equal(chunks.step, everything.step)
    assert torch.equal(chunks.zero_point, everything.zero_point)
    if bits == 8 and not symmetric:
        assert len(tried) / 3 < 100  # of 125 and the pattern's


@pytest.mark.parametrize("bounds", [(-8, 7), (torch.tensor([[-8.0], [-3.0]]), torch.tensor([[7.0], [12.0]]))])
def test_clip_equals_torchs_clamp_and_keeps_the_gradient_at_the_bounds(bounds):
    x = (10 * randn(2, 100)).round().requires_grad_()
    expected = torch.clamp(x, *bounds)
    found = flexround.clip(x, *bounds)
    found.sum().backward()
    assert torch.equal(found, expected)
    assert torch.equal(x.grad, (x == expected).float())
    values = x.detach()
    assert clip(values, *bounds, out=values) is values
    assert torch.equal(values, expected)
