"""GPTQ against plain elimination with explicit inverses; features without inputs."""

import pytest
import torch
from rounding_cases import SHAPES
from tensors import randn

from flexround.models.surgery import attach
from flexround.quant import gptq
from flexround.quant.gptq import GPTQ
from flexround.quant.grid import Scheme, in_groups, nearest_codes
from flexround.quant.rounding import Axes
from flexround.quant.search import initial_grid

GROUPS = {"grouped": 2, "depthwise": 8}


def case(kind, axis=None, symmetric=True, **options):
    """Return a weight, a rounding of it and correlated inputs of its layer (groups, rows, features)."""
    shape, axes = SHAPES.get(kind, ((6, 24), Axes(0)))
    weight = randn(*shape, seed=3) * 0.2 + (0.1 if not symmetric else 0)
    features, groups = axes.matrix(weight).shape[1], GROUPS.get(kind, 1)
    if kind in SHAPES:
        grid = initial_grid(weight, Scheme(3, symmetric, axis and axes.output))
    else:
        grid = attach.weight_grid(weight, Scheme(3, symmetric, 0), "mse", 2.4, 8)
        weight = in_groups(weight, grid.step)
    mixed = randn(groups, 200, features, seed=5) @ randn(groups, features, features, seed=6)
    return weight, GPTQ(weight, grid, axes, **options), mixed


def plain_codes(weight, rounding, inputs, act_order=False):
    """Round one output after the other, one feature after the other, with the inverse of what remains of H."""
    axes = rounding.axes
    rows = axes.matrix(weight).double()
    shape = weight.transpose(0, axes.output).shape
    spread = [
        axes.matrix(torch.as_tensor(value).expand_as(weight)).double()
        for value in (rounding.grid.step, *rounding.grid.bounds)
    ]
    codes = torch.empty_like(rows)
    for output, row in enumerate(rows.clone()):
        x = inputs[output * len(inputs) // len(rows)].double()
        moments = x.T @ x
        moments += rounding.damping * moments.diagonal().mean() * torch.eye(len(row), dtype=torch.double)
        left = list(range(len(row)))
        if act_order:
            left.sort(key=lambda i, m=moments: -m[i, i])
        while left:
            inverse = moments[left][:, left].inverse()
            step, low, high = (value[output, left[0]] for value in spread)
            code = (row[left[0]] / step).round().clamp(low, high)
            codes[output, left[0]] = code
            row[left] -= (row[left[0]] - code * step) / inverse[0, 0] * inverse[0]
            left = left[1:]
    return codes.reshape(shape).transpose(0, axes.output).float()


@pytest.mark.parametrize("kind", [*SHAPES, "in groups"])
@pytest.mark.parametrize("axis", [None, True])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("act_order", [False, True])
def test_codes_are_those_of_plain_elimination(monkeypatch, kind, axis, symmetric, act_order):
    monkeypatch.setattr(gptq, "COLUMNS", 4)
    weight, rounding, inputs = case(kind, axis, symmetric, act_order=act_order)
    rounding.fit(weight, inputs.split(64, 1))
    assert torch.equal(rounding.codes(weight), plain_codes(weight, rounding, inputs, act_order))
    assert torch.equal(rounding(weight), rounding.codes(weight) * rounding.step())
    assert not torch.equal(rounding.codes(weight), nearest_codes(weight, rounding.grid))


@pytest.mark.parametrize("act_order", [False, True])
def test_features_that_are_always_zero_get_zeros(act_order):
    weight, rounding, inputs = case("linear", act_order=act_order)
    inputs[:, :, 2] = 0
    rounding.fit(weight, [inputs])
    alive = [0, 1, 3, 4]
    assert (rounding.codes(weight)[:, 2] == 0).all()
    part, smaller = weight[:, alive], GPTQ(weight[:, alive], rounding.grid, rounding.axes, 0.01 * 4 / 5, act_order)
    smaller.fit(part, [inputs[:, :, alive]])
    assert torch.equal(rounding.codes(weight)[:, alive], smaller.codes(part))


def test_inputs_of_zeros_give_zeros_and_no_inputs_nearest():
    weight, rounding, inputs = case("depthwise")
    rounding.fit(weight, iter([]))
    assert torch.equal(rounding.codes(weight), nearest_codes(weight, rounding.grid))
    rounding.fit(weight, [inputs * 0])
    assert (rounding(weight) == 0).all()
