"""Values and gradients against the published formulas by autograd in float64, and against differences."""

import pytest
import torch
from rounding_cases import CASES, SHAPES
from tensors import randn

from flexround.quant.adaquant import AdaQuant, AdaQuantFlexRound
from flexround.quant.adaround import AdaRound
from flexround.quant.flexround import FlexRound
from flexround.quant.functions import RoundingRegularizer, StepQuantize
from flexround.quant.grid import Scheme, channel_range, grid_from_range
from flexround.quant.lrq import LRQ
from flexround.quant.rounding import Rounding
from flexround.quant.signround import SignRound


class PlainRound(torch.autograd.Function):
    """Rounding with the straight-through gradient, the textbook way."""

    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, grad):
        return grad


def clamp_open(rounded, low, high):
    """Clamp with gradient 1 at the bounds too, as torch.clamp had when the methods were published (it is 0 now)."""
    inside = (rounded >= low) & (rounded <= high)
    return torch.where(inside, rounded, rounded.detach().clamp(low, high))


def divided(weight, step, divisor, rounding):
    return step * clamp_open(PlainRound.apply(weight / divisor), rounding.low, rounding.high)


def flexround(rounding, weight):
    learned = [p for p in (rounding.d1, rounding.d2, rounding.d3, rounding.d4) if p is not None]
    scales = learned if rounding.direct else [rounding.grid.step * learned[0].exp(), *(p.exp() for p in learned[1:])]
    divisor = scales[0]
    for scale in scales[1:]:
        divisor = divisor * scale
    return divided(weight, scales[0], divisor, rounding)


def adaquant(rounding, weight):
    step = rounding.grid.step * rounding.d1.exp()
    return divided(weight + rounding.v, step, step, rounding)


def lrq(rounding, weight):
    axes = rounding.axes
    exponent = (rounding.left @ rounding.right + rounding.column).reshape(weight.transpose(0, axes.output).shape)
    step = rounding.grid.step * rounding.d1.exp()
    return divided(weight, step, step * (exponent.transpose(0, axes.output) + rounding.row).exp(), rounding)


def soft(alpha):
    return (1.2 * alpha.sigmoid() - 0.1).clamp(0, 1)


def adaround(rounding, weight):
    step = rounding.grid.step
    return step * ((weight / step).floor() + soft(rounding.alpha)).clamp(rounding.low, rounding.high)


def signround(rounding, weight):
    """s from the scaled ends of the range, the zero point from s."""
    grid, ends = rounding.grid, rounding.ends
    low, high = grid.step * (grid.qmin - grid.zero_point), grid.step * (grid.qmax - grid.zero_point)
    if grid.qmin < 0:
        step, zero_point = grid.step * ends[0], 0
    else:
        step = (ends[0] * high - ends[1] * low) / (grid.qmax - grid.qmin)
        zero_point = PlainRound.apply(-ends[1] * low / step)
    codes = PlainRound.apply(weight / step + rounding.v) + zero_point
    return step * (clamp_open(codes, grid.qmin, grid.qmax) - zero_point)


FORMULAS = {
    FlexRound: flexround,
    AdaQuant: adaquant,
    AdaQuantFlexRound: lambda rounding, weight: flexround(rounding, weight + rounding.v),
    LRQ: lrq,
    AdaRound: adaround,
    SignRound: signround,
}


def learned(rounding):
    return [parameter for parameter in rounding.parameters() if parameter.requires_grad]


@pytest.mark.parametrize("case", [name for name, (cls, _) in CASES.items() if cls in FORMULAS])
@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("symmetric", [False, True])
def test_value_and_gradients_are_those_of_the_published_formula(case, kind, per_channel, symmetric):
    """Somewhere in learning, some weights clipped at each end; of the weight too, where it has a gradient."""
    cls, options = CASES[case]
    shape, axes = SHAPES[kind]
    weight = (randn(*shape, dtype=torch.float64) + 0.3).requires_grad_()
    axis = axes.output if per_channel else None
    low, high = channel_range(weight.detach(), axis)
    grid = grid_from_range(0.6 * low, 0.6 * high, Scheme(3, symmetric, axis), has_negatives=True)
    rounding = cls(weight, grid, axes, **options).double()
    for number, parameter in enumerate(learned(rounding)):
        change = 0.1 * randn(*parameter.shape, seed=number, dtype=torch.float64).clamp(-1, 1)
        parameter.data += change - 0.1 * (cls is SignRound)  # which begins at a bound
    out = rounding(weight)
    codes = rounding.codes(weight)
    assert (codes == rounding.final_grid().bounds[1]).any(), "nothing is clipped"
    if cls.codes is Rounding.codes:
        torch.testing.assert_close(codes * rounding.step(), out)
    inputs = [*learned(rounding), *([] if cls in (AdaRound, SignRound) else [weight])]
    upstream = randn(*shape, seed=9, dtype=torch.float64)
    found = torch.autograd.grad(out, inputs, upstream)
    expected = FORMULAS[cls](rounding, weight)
    torch.testing.assert_close(out, expected)
    for mine, theirs in zip(found, torch.autograd.grad(expected, inputs, upstream), strict=True):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("beta", [20.0, 7.3, 2.0])
def test_regularizer_equals_the_plain_formula(beta):
    alpha = randn(40, dtype=torch.float64).mul(2).requires_grad_()
    expected = (1 - (2 * soft(alpha) - 1).abs().pow(beta)).sum()
    out = RoundingRegularizer.apply(alpha, beta, False)
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(torch.autograd.grad(out, alpha)[0], torch.autograd.grad(expected, alpha)[0])


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_step_quantize_equals_the_plain_formula(masked, layout):
    x = randn(2, 3, 4, 5, dtype=torch.float64).contiguous(memory_format=layout).requires_grad_()
    step = torch.tensor(0.2, dtype=torch.float64, requires_grad=True)
    kept = randn(2, 3, 4, 5, seed=4) > 0 if masked else None
    quantized = clamp_open(PlainRound.apply(x / step), -4, 3) * step
    expected = quantized if kept is None else torch.where(kept > 0, quantized, x)
    out = StepQuantize.apply(x, step, -4.0, 3.0, kept, False)
    torch.testing.assert_close(out, expected)
    upstream = randn(2, 3, 4, 5, seed=6, dtype=torch.float64)[:1].expand(2, -1, -1, -1)  # no layout of its own
    for given in (upstream, upstream.contiguous(memory_format=torch.channels_last)):
        found = torch.autograd.grad(out, (x, step), given, retain_graph=True)
        for mine, theirs in zip(found, torch.autograd.grad(expected, (x, step), given, retain_graph=True), strict=True):
            torch.testing.assert_close(mine, theirs)
