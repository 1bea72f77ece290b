"""LRQ: formula, shapes, rank."""

import pytest
import torch
from tensors import randn
from test_gradients import plain_flexround
from test_roundings import SHAPES, make

from flexround.quant.flexround import FlexRound
from flexround.quant.grid import Grid
from flexround.quant.lrq import LRQ
from flexround.quant.rounding import Axes


def moved(kind, axis=None, **options):
    weight, grid, rounding = make(LRQ, kind, axis, **options)
    with torch.no_grad():
        for number, parameter in enumerate(rounding.parameters()):
            parameter.add_(randn(*parameter.shape, seed=number) * 0.2)
    return weight, grid, rounding


@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize("per_channel", [False, True])
def test_value_and_gradients_are_those_of_the_plain_formula(kind, per_channel):
    axes = SHAPES[kind][1]
    weight, grid, rounding = moved(kind, axes.output if per_channel else None)
    left, right, row, column, d1 = (
        p.detach().clone().requires_grad_()
        for p in (rounding.left, rounding.right, rounding.row, rounding.column, rounding.d1)
    )
    exponent = left @ right + row.view(-1, 1) + column
    like = weight.transpose(0, axes.output)
    exponent = exponent.view(like.shape).transpose(0, axes.output)
    zero = torch.zeros(())
    expected = plain_flexround(weight, d1, exponent, zero, zero, grid.qmin, grid.qmax)
    out = rounding(weight)
    torch.testing.assert_close(out, expected)
    upstream = randn(*weight.shape, seed=8)
    ours = [rounding.left, rounding.right, rounding.row, rounding.column, rounding.d1]
    found = torch.autograd.grad(out, ours, upstream)
    for mine, theirs in zip(
        found, torch.autograd.grad(expected, [left, right, row, column, d1], upstream), strict=True
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


def test_the_rank_is_a_quarter_of_the_smaller_side_unless_it_is_given():
    for kind, rank in {"linear": 1, "conv": 1, "conv1d": 1, "depthwise": 2}.items():
        assert make(LRQ, kind)[2].left.shape[1] == rank
    assert make(LRQ, "conv", rank=5)[2].right.shape == (5, 36)
    with pytest.raises(ValueError, match="rank 0: choose 1 or more"):
        make(LRQ, "conv", rank=0)


def test_it_learns_less_than_flexround_where_weights_are_large():
    weight, grid = torch.zeros(64, 96), Grid(torch.tensor(0.1), torch.tensor(0.0), -8, 7)
    counts = [sum(p.numel() for p in cls(weight, grid, Axes(0)).parameters()) for cls in (LRQ, FlexRound)]
    assert counts == [1 + 16 * (64 + 96) + 64 + 96, 1 + 64 * 96 + 64]


def test_u_is_the_same_whatever_the_global_generator():
    drawn = []
    for noise in range(2):
        torch.manual_seed(noise)
        drawn.append(make(LRQ, "conv")[2].right)
    assert torch.equal(*drawn)
    assert drawn[0].abs().max() <= 36**-0.5
    assert drawn[0].std() > 0.3 * 36**-0.5
