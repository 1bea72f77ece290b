"""Weights of linears with a step for each group of input channels."""

import pytest
import tiny
import torch
from own_networks import FEW, llama, words
from rounding_cases import CASES
from tensors import randn
from torch import nn

import flexround
from flexround.errors import InputError
from flexround.models.surgery import attach
from flexround.quant.flexround import FlexRound
from flexround.quant.grid import Scheme, in_groups
from flexround.quant.lrq import LRQ
from flexround.quant.rounding import Axes

pytestmark = pytest.mark.filterwarnings("ignore:in floating point")
GROUP = {"w_granularity": "group", "group_size": 8}
SIZE = 8


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("case", [name for name, (cls, _) in CASES.items() if cls is not LRQ])
def test_a_group_is_learned_as_a_channel_of_its_own_would_be(case, symmetric):
    """All but LRQ, whose factors cross groups, and FlexRound's s3, which is one for an output channel."""
    cls, options = CASES[case]
    if issubclass(cls, FlexRound):
        options = options | {"use_s3_s4": False}
    weight = randn(6, 24, seed=3) * 0.2 + (0 if symmetric else 0.1)
    grid = attach.weight_grid(weight, Scheme(3, symmetric, 0), "mse", 2.4, SIZE)
    assert grid.step.shape == (6, 3, 1)
    rows = weight.reshape(18, SIZE)
    alone = attach.weight_grid(rows, Scheme(3, symmetric, 0), "mse", 2.4)
    assert torch.equal(grid.step.flatten(), alone.step.flatten())
    module = nn.Linear(24, 6)
    attach.bake(module, weight)
    found, wanted = cls(in_groups(weight, grid.step), grid, Axes(0), **options), cls(rows, alone, Axes(0), **options)
    attach.attach_rounding(module, found)
    with torch.no_grad():
        for number, (one, other) in enumerate(zip(found.parameters(), wanted.parameters(), strict=True)):
            other += 0.1 * randn(*other.shape, seed=number)
            one.copy_(other.reshape(one.shape))
        assert torch.equal(module.weight, wanted(rows).view(6, 24))
    if list(wanted.parameters()):
        upstream = randn(6, 24, seed=9)
        (module.weight * upstream).sum().backward()
        (wanted(rows) * upstream.view(18, SIZE)).sum().backward()
        for one, other in zip(found.parameters(), wanted.parameters(), strict=True):
            if other.grad is not None:
                torch.testing.assert_close(one.grad, other.grad.reshape(one.shape))
    assert torch.equal(found.codes(in_groups(weight, grid.step)).reshape(18, SIZE), wanted.codes(rows))


@pytest.mark.parametrize("rounding", ["flexround", "signround", "gptq"])
def test_each_group_of_a_network_s_weights_has_a_step(rounding):
    recipe = flexround.Recipe(setting="B", rounding=rounding, w_bits=4)
    found = flexround.quantize(llama(), words(), recipe, **FEW | GROUP, lr=1e-3)
    codes = found.codes()["model.layers.0.mlp.down_proj"]
    assert codes.codes.shape == (16, 32)
    assert codes.grid.step.shape == codes.initial_step.shape == (16, 4, 1)
    step, zero_point = (each.squeeze(2).repeat_interleave(SIZE, 1) for each in (codes.grid.step, codes.grid.zero_point))
    weight = found.model.model.layers[0].mlp.down_proj.weight
    assert torch.equal((codes.codes.float() - zero_point) * step, weight)


def test_groups_of_a_transposed_linear_are_refused():
    with pytest.raises(InputError, match=r"^transformer\.h\.0\.attn\.c_attn: its Conv1D weight"):
        flexround.quantize(tiny.make("gpt2"), words(), "b-rtn-w4", **FEW | GROUP)
