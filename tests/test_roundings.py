"""Roundings: where they start, what they can reach, what their options are, the shapes of what they learn."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rounding_cases import CASES, SHAPES
from tensors import randn

from flexround.quant.adaround import AdaRound
from flexround.quant.flexround import FlexRound
from flexround.quant.grid import Grid, Scheme, grid_from_range, nearest_codes
from flexround.quant.lrq import LRQ
from flexround.quant.rounding import Axes, Rounding
from flexround.quant.rtn import RTN
from flexround.quant.search import initial_grid
from flexround.quant.signround import SignRound


def make(cls, kind="conv", axis=None, bits=3, symmetric=True, **options):
    shape, axes = SHAPES[kind]
    weight = randn(*shape, seed=3) * 0.2
    grid = initial_grid(weight, Scheme(bits, symmetric, axis))
    return weight, grid, cls(weight, grid, axes, **options)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize("per_channel", [False, True])
def test_every_rounding_starts_at_round_to_nearest(case, kind, per_channel):
    """Those that are soft while they learn have codes of their own; only their codes start there."""
    cls, options = CASES[case]
    axis = SHAPES[kind][1].output if per_channel else None
    weight, grid, rounding = make(cls, kind, axis, **options)
    expected = nearest_codes(weight, grid)
    assert torch.equal(rounding.codes(weight), expected)
    torch.testing.assert_close(rounding.step(), grid.step)
    if cls.codes is Rounding.codes:
        torch.testing.assert_close(rounding(weight), expected * grid.step)
    if cls is FlexRound and not rounding.direct:
        assert torch.equal(rounding(weight), make(RTN, kind, axis)[2](weight)), "bit for bit"


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("step", [3.0, 0.1, 0.7])
def test_every_rounding_starts_at_the_even_code_of_a_tie(case, dtype, step):
    cls, options = CASES[case]
    grid = Grid(torch.tensor(step, dtype=dtype), torch.tensor(0.0, dtype=dtype), -8, 7)
    codes = torch.arange(-7.5, 7, dtype=dtype).reshape(3, 5)
    weight = codes * grid.step
    exact = weight / grid.step == codes  # not every step divides its own multiple without a remainder
    assert exact.any()
    assert torch.equal(cls(weight, grid, Axes(0), **options).codes(weight), nearest_codes(weight, grid))
    assert torch.equal(nearest_codes(weight, grid)[exact] % 2, torch.zeros_like(weight[exact]))


@given(
    bits=st.integers(2, 8),
    seed=st.integers(0, 1000),
    kind=st.sampled_from(sorted(SHAPES)),
    case=st.sampled_from(sorted(CASES)),
    symmetric=st.booleans(),
)
@settings(max_examples=50, deadline=None)
def test_codes_stay_on_the_grid_whatever_the_parameters(bits, seed, kind, case, symmetric):
    cls, options = CASES[case]
    weight, grid, rounding = make(cls, kind, bits=bits, symmetric=symmetric, **options)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in rounding.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator))
    codes = rounding.codes(weight) + rounding.final_grid().zero_point
    assert torch.equal(codes, codes.round())
    assert codes.min() >= grid.qmin
    assert codes.max() <= grid.qmax
    assert rounding.step() > 0


def test_adaround_starts_in_full_precision_and_ends_up_or_down():
    weight, grid, rounding = make(AdaRound, bits=8)
    inside = (weight / grid.step).floor().clamp(grid.qmin, grid.qmax - 1) == (weight / grid.step).floor()
    torch.testing.assert_close(rounding(weight)[inside], weight[inside], rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        rounding.alpha.copy_(torch.where(randn(*weight.shape) > 0, 20.0, -20.0))
    assert torch.equal(rounding.codes(weight) * grid.step, rounding(weight))
    assert ((rounding.codes(weight) - weight / grid.step).abs()[inside] <= 1).all()


@pytest.mark.parametrize(
    ("kind", "s3", "s4"),
    [
        ("linear", (7, 1), None),
        ("conv", (6, 1, 1, 1), (1, 4, 1, 1)),
        ("depthwise", (8, 1, 1, 1), (1, 1, 1, 1)),
        ("conv1d", (1, 7), None),
    ],
)
def test_scales_have_the_papers_shapes(kind, s3, s4):
    rounding, ablated = (make(FlexRound, kind, use_s3_s4=each, learn_s1=each)[2] for each in (True, False))
    assert rounding.d3.shape == s3
    assert (rounding.d4 if s4 is None else rounding.d4.shape) == s4
    assert ablated.d3 is ablated.d4 is None
    assert (rounding.d1.requires_grad, ablated.d1.requires_grad) == (True, False)


def test_lrq_has_its_paper_s_rank_and_draws_u_by_itself():
    rounding = make(LRQ, "depthwise")[2]
    shapes = [tuple(part.shape) for part in (rounding.left, rounding.row, rounding.column)]
    assert shapes == [(8, 2), (8, 1, 1, 1), (1, 9)]
    u, again = (make(LRQ, "conv", rank=5)[2].right for _ in range(2))
    assert u.shape == (5, 36)
    assert torch.equal(u, again), "whatever has been drawn from the global generator"
    assert u.abs().max() <= 36**-0.5
    assert u.std() > 0.3 * 36**-0.5


@pytest.mark.parametrize("symmetric", [True, False])
def test_range_and_v_of_signround_end_at_their_bounds(symmetric):
    weight = randn(6, 5, dtype=torch.float64) * 0.5 + 0.3
    low, high = weight.amin(1, True), weight.amax(1, True)
    rounding = SignRound(weight, grid_from_range(low * 0.8, high * 0.8, Scheme(3, symmetric, 0), True), Axes(0))
    with torch.no_grad():
        rounding.v.add_(3), rounding.ends.add_(3)
    rounding(weight)
    assert (rounding.v <= 0.5).all()
    grid = rounding.final_grid()
    width = (grid.qmax - grid.qmin) * grid.step
    if symmetric:
        torch.testing.assert_close(width / 2, weight.abs().amax(1, True))
    else:
        torch.testing.assert_close(width, high - low.clamp_max(0))
        lower, upper = (bound * grid.step for bound in grid.bounds)
        assert ((upper - high).abs() <= grid.step).all()
        assert (lower <= 0).all()
    with torch.no_grad():
        rounding.v.sub_(30), rounding.ends.sub_(30)
    assert (rounding.step() > 0).all()
    rounding(weight)
    assert (rounding.v >= -0.5).all()
