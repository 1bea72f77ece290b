"""SignRound: gradients, what is learned and where it ends, the learned range in what is stored."""

import pytest
import torch
import toy
from tensors import randn
from test_gradients import PlainRound, clamp_open

from flexround.quant.grid import Scheme, grid_from_range
from flexround.quant.rounding import Axes
from flexround.quant.search import initial_grid
from flexround.quant.signround import SignRound

SIGN = {"optimizer": "sign", "schedule": "linear", "iters": 100, "lr": 0.01}


def made(symmetric, axis, kind=torch.float64, shift=0.3, part=0.8):
    """Return a weight and its rounding, clipped at a part of the range, with V, α and β moved."""
    weight = randn(6, 5, dtype=kind) * 0.5 + shift
    low, high = (weight.amin(1, True), weight.amax(1, True)) if axis == 0 else (weight.min(), weight.max())
    grid = grid_from_range(low * part, high * part, Scheme(3, symmetric, axis), True)
    rounding = SignRound(weight, grid, Axes(0))
    with torch.no_grad():
        rounding.v.copy_(randn(6, 5, seed=1, dtype=kind).clamp(-1, 1) / 2)
        rounding.ends.copy_(0.9 + 0.1 * randn(*rounding.ends.shape, seed=2, dtype=kind).clamp(-1, 1))
    return weight, rounding


def plain(weight, v, ends, grid):
    """The published formula: s from the scaled ends of the range, the zero point from s, everything by autograd."""
    low, high = grid.step * (grid.qmin - grid.zero_point), grid.step * (grid.qmax - grid.zero_point)
    if grid.qmin < 0:
        step, zero_point = grid.step * ends[0], 0
    else:
        step = (ends[0] * high - ends[1] * low) / (grid.qmax - grid.qmin)
        zero_point = PlainRound.apply(-ends[1] * low / step)
    q = PlainRound.apply(weight / step + v) + zero_point
    return step * (clamp_open(q, grid.qmin, grid.qmax) - zero_point)


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("axis", [None, 0])
def test_value_and_gradients_are_those_of_the_plain_formula(symmetric, axis):
    weight, rounding = made(symmetric, axis)
    v, ends = (p.detach().clone().requires_grad_() for p in (rounding.v, rounding.ends))
    out, expected = rounding(weight), plain(weight, v, ends, rounding.grid)
    codes = rounding.codes(weight)
    low, high = (torch.as_tensor(bound).expand_as(codes) for bound in rounding.final_grid().bounds)
    if not symmetric:
        assert (codes == low).any()
        assert (codes == high).any()
    torch.testing.assert_close(out, expected)
    upstream = randn(6, 5, seed=9, dtype=torch.float64)
    found = torch.autograd.grad(out, [rounding.v, rounding.ends], upstream)
    for mine, theirs in zip(found, torch.autograd.grad(expected, [v, ends], upstream), strict=True):
        torch.testing.assert_close(mine, theirs)
    grid = rounding.final_grid()
    torch.testing.assert_close(codes * grid.step, out)
    assert (codes + grid.zero_point >= grid.qmin).all()
    assert (codes + grid.zero_point <= grid.qmax).all()


@pytest.mark.parametrize("symmetric", [True, False])
def test_range_and_v_end_at_their_bounds(symmetric):
    weight, rounding = made(symmetric, 0)
    with torch.no_grad():
        rounding.v.add_(3), rounding.ends.add_(3)
    grid = rounding.final_grid()
    rounding(weight)
    assert (rounding.v <= 0.5).all()
    lows, highs = (bound * grid.step for bound in grid.bounds)
    largest = weight.abs().amax(1, True) if symmetric else weight.amax(1, True)
    width = (grid.qmax - grid.qmin) * grid.step
    if symmetric:
        torch.testing.assert_close(width / 2, largest)
    else:
        torch.testing.assert_close(width, largest - weight.amin(1, True).clamp_max(0))
        assert ((highs - largest).abs() <= grid.step).all()
        assert (lows <= 0).all()
    with torch.no_grad():
        rounding.v.sub_(30), rounding.ends.sub_(30)
    assert (rounding.step() > 0).all()
    rounding(weight)
    assert (rounding.v >= -0.5).all()


def test_one_sided_weights_and_channels_of_zeros_keep_their_range():
    weight = randn(4, 5).abs()
    weight[2] = 0
    for symmetric in (True, False):
        rounding = SignRound(weight, initial_grid(weight, Scheme(4, symmetric, 0)), Axes(0))
        assert torch.isfinite(rounding.largest).all()
        rounding(weight).sum().backward()
        assert torch.isfinite(rounding.ends.grad).all()
        assert (rounding.codes(weight)[2] == 0).all()


@pytest.mark.parametrize("scheme", ["symmetric", "asymmetric"])
@pytest.mark.parametrize("granularity", ["tensor", "channel"])
def test_it_beats_round_to_nearest_and_what_is_stored_is_what_was_learned(tmp_path, scheme, granularity):
    x, full, errors = toy.samples(), toy.model(), []
    for rounding in ("rtn", "signround"):
        job = toy.job(toy.recipe("B", rounding, 3), w_scheme=scheme, w_granularity=granularity, **SIGN)
        tensors, _, model = toy.run(job, tmp_path)
        with torch.no_grad():
            errors.append((model(x) - full(x)).square().sum().item())
    assert errors[1] < 0.8 * errors[0]
    for name in ("body.0.conv1", "body.1.conv2"):
        codes, zero_point, step = (tensors[f"weight/{name}:{part}"] for part in ("codes", "zero_point", "step"))
        torch.testing.assert_close((codes.float() - zero_point) * step, model.get_submodule(name).weight)
        assert (step != tensors[f"weight/{name}:initial_step"]).any()
