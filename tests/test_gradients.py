"""Analytic gradients against the plain formulas and finite differences; the activation quantizer."""

import pytest
import torch
from rounding_cases import CASES
from tensors import randn
from torch.autograd import gradcheck

from flexround.quant.activation import ActivationQuantizer, keep_mask
from flexround.quant.functions import DivideRound, RectifiedSigmoidRound, RoundingRegularizer, StepQuantize
from flexround.quant.grid import Grid
from flexround.quant.rounding import Axes, Rounding


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


def plain_flexround(weight, d1, d2, d3, d4, low, high):
    divisor = d1.exp() * d2.exp() * d3.exp() * d4.exp()
    return d1.exp() * clamp_open(PlainRound.apply(weight / divisor), low, high)


def flexround_inputs(per_channel=False):
    weight = randn(4, 3, 2, 2, dtype=torch.float64)
    d1 = torch.full((4, 1, 1, 1) if per_channel else (), -1.0, dtype=torch.float64)
    small = [
        randn(*shape, seed=i, dtype=torch.float64) * 0.1
        for i, shape in enumerate([(4, 3, 2, 2), (4, 1, 1, 1), (1, 3, 1, 1)])
    ]
    return [tensor.clone().requires_grad_() for tensor in (weight, d1, *small)]


@pytest.mark.parametrize("per_channel", [False, True])
def test_divide_round_equals_the_plain_formula_in_value_and_all_gradients(per_channel):
    upstream = randn(4, 3, 2, 2, seed=9, dtype=torch.float64)
    ours, plain = flexround_inputs(per_channel), flexround_inputs(per_channel)
    out, expected = DivideRound.apply(*ours, -4.0, 3.0, False), plain_flexround(*plain, -4.0, 3.0)
    assert (out.abs() == 4 * ours[1].exp()).any(), "the case must include clipped weights"
    torch.testing.assert_close(out, expected)
    out.backward(upstream), expected.backward(upstream)
    for mine, theirs in zip(ours, plain, strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad)


def test_proposition_3_1():
    """dL/dS' = -W / S'^2 * dL/dW_hat, so the gradient is proportional to the weight (s1 has no part in it)."""
    weight, d1, d2, *_ = flexround_inputs()
    scale = d2.detach().exp().requires_grad_()
    out = DivideRound.apply(weight.detach(), d1.detach(), scale.log(), None, None, -1000.0, 1000.0, False)
    upstream = randn(*out.shape, seed=5, dtype=torch.float64)
    (grad,) = torch.autograd.grad(out, scale, upstream)
    torch.testing.assert_close(grad, -weight.detach() / scale.detach() ** 2 * upstream)


def test_rectified_sigmoid_round_equals_the_plain_formula():
    alpha = randn(5, 6, dtype=torch.float64).mul(3).requires_grad_()
    floor, step = randn(5, 6, seed=1, dtype=torch.float64).mul(4).floor(), torch.tensor(0.3, dtype=torch.float64)

    def plain(alpha):
        return step * (floor + (1.2 * alpha.sigmoid() - 0.1).clamp(0, 1)).clamp(-4, 3)

    out, expected = RectifiedSigmoidRound.apply(alpha, floor, step, -4.0, 3.0, False), plain(alpha)
    torch.testing.assert_close(out, expected)
    upstream = randn(5, 6, seed=2, dtype=torch.float64)
    torch.testing.assert_close(
        torch.autograd.grad(out, alpha, upstream)[0], torch.autograd.grad(expected, alpha, upstream)[0]
    )
    assert gradcheck(lambda a: RectifiedSigmoidRound.apply(a, floor, step, -100.0, 100.0, False), alpha)


@pytest.mark.parametrize("beta", [20.0, 7.3, 2.0])
def test_regularizer_equals_the_plain_formula(beta):
    alpha = randn(40, dtype=torch.float64).mul(2).requires_grad_()
    h = (1.2 * alpha.sigmoid() - 0.1).clamp(0, 1)
    expected = (1 - (2 * h - 1).abs().pow(beta)).sum()
    out = RoundingRegularizer.apply(alpha, beta, False)
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(torch.autograd.grad(out, alpha)[0], torch.autograd.grad(expected, alpha)[0])


@pytest.mark.parametrize("case", CASES)
def test_every_rounding_has_the_gradients_of_its_formula_in_all_it_learns(case):
    """By differences in double precision, on a grid so fine that rounding is lost in them.

    A soft rounding is smooth on any grid and moves a weight by one step at most: its grid is a coarse one.
    """
    cls, options = CASES[case]
    soft, change = cls.codes is not Rounding.codes, 1e-4
    weight, upstream = (randn(6, 4, 3, 3, seed=seed, dtype=torch.float64) for seed in (0, 1))
    step = torch.tensor(0.3 if soft else 1e-9, dtype=torch.float64)
    rounding = cls(weight, Grid(step, torch.zeros_like(step), -(2**40), 2**40), Axes(0, 1), **options).double()
    learned = [parameter for parameter in rounding.parameters() if parameter.requires_grad]
    groups = [parameter for group in rounding.groups().values() for parameter in group]
    assert sorted(map(id, groups)) == sorted(map(id, learned)), "each in one group"
    for parameter in learned:  # some begin at a bound of what they may be
        parameter.data.mul_(0.99)
    gradients = torch.autograd.grad(rounding(weight), learned, upstream) if learned else ()
    for number, (parameter, gradient) in enumerate(zip(learned, gradients, strict=True)):
        start = parameter.detach().clone()
        direction = randn(*start.shape, seed=number, dtype=torch.float64) * start.abs().where(start != 0, 1)
        values = []
        with torch.no_grad():
            for sign in (1, -1):
                parameter.copy_(start + sign * change * direction)
                values.append((rounding(weight) * upstream).sum())
            parameter.copy_(start)
        expected = (values[0] - values[1]) / (2 * change)
        torch.testing.assert_close((gradient * direction).sum(), expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("masked", [False, True])
def test_step_quantize_equals_the_plain_formula(masked):
    x = randn(8, 20, dtype=torch.float64).requires_grad_()
    step = torch.tensor(0.2, dtype=torch.float64, requires_grad=True)
    kept = (randn(8, 20, seed=4) > 0).double() if masked else None

    def plain(x, step):
        quantized = clamp_open(PlainRound.apply(x / step), -4, 3) * step
        return quantized if kept is None else torch.where(kept > 0, quantized, x)

    out, expected = StepQuantize.apply(x, step, -4.0, 3.0, kept, False), plain(x, step)
    torch.testing.assert_close(out, expected)
    upstream = randn(8, 20, seed=6, dtype=torch.float64)
    for mine, theirs in zip(
        torch.autograd.grad(out, (x, step), upstream),
        torch.autograd.grad(expected, (x, step), upstream),
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs)


def test_activation_step_is_positive_whatever_the_parameter():
    quantizer = ActivationQuantizer(Grid(torch.tensor(0.1), torch.tensor(0.0), 0, 15))
    for value in (-0.3, 0.0, 1e-20, 5.0):
        quantizer.raw_step.data.fill_(value)
        assert quantizer.step() > 0
        assert torch.isfinite(quantizer(torch.ones(3))).all()


@pytest.mark.parametrize("probability", [0.25, 0.5, 0.75, 0.9, 0.999])
def test_dropping_keeps_the_quantized_value_with_the_given_probability_unscaled(probability):
    quantizer = ActivationQuantizer(Grid(torch.tensor(1.0), torch.tensor(0.0), -8, 7))
    quantizer.keep_probability, quantizer.generator = probability, torch.Generator().manual_seed(0)
    x = torch.full((200, 500), 0.4, requires_grad=True)
    out = quantizer(x).detach()
    assert sorted(out.unique().tolist()) == pytest.approx([0.0, 0.4])
    assert (out == 0).float().mean().item() == pytest.approx(probability, abs=0.01)


def test_keep_mask_is_reproducible_and_independent_of_the_global_generator():
    masks = []
    for noise in range(2):
        torch.manual_seed(noise)
        masks.append(keep_mask(torch.empty(3, 5, 7), 0.5, torch.Generator().manual_seed(1)))
    assert torch.equal(*masks)
    rows = keep_mask(torch.empty(64, 4096), 0.5, torch.Generator().manual_seed(2))
    correlation = torch.corrcoef(rows)[~torch.eye(64, dtype=torch.bool)]
    assert correlation.abs().max() < 0.08, "neighbouring bytes of a word must be independent"


@pytest.mark.parametrize("probability", [0.25, 0.5, 0.7])
def test_keep_mask_has_the_layout_of_what_it_masks_and_no_element_copies_another(probability):
    image = torch.empty(16, 6, 9, 11).contiguous(memory_format=torch.channels_last)
    mask = keep_mask(image, probability, torch.Generator().manual_seed(0))
    assert mask.stride() == image.stride()
    assert mask.unique().tolist() == [0, 1]
    draws = torch.stack(
        [keep_mask(torch.empty(24), probability, torch.Generator().manual_seed(s)) for s in range(4000)]
    )
    correlation = torch.corrcoef(draws.T)[~torch.eye(24, dtype=torch.bool)]
    assert correlation.abs().max() < 0.09, "elements that share a random byte must be independent"
    assert (draws.mean(0) - probability).abs().max() < 0.05


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_step_quantize_takes_gradients_of_any_layout(layout):
    x = randn(2, 3, 4, 5).contiguous(memory_format=layout).requires_grad_()
    step = torch.tensor(0.2, requires_grad=True)
    out = StepQuantize.apply(x, step, -4.0, 3.0, None, False)
    plain = randn(2, 3, 4, 5, seed=6)[:1].expand(2, -1, -1, -1)
    for upstream in (plain, plain.contiguous(memory_format=torch.channels_last)):
        for mine, expected in zip(
            torch.autograd.grad(out, (x, step), upstream, retain_graph=True),
            torch.autograd.grad(out, (x, step), plain.contiguous(), retain_graph=True),
            strict=True,
        ):
            torch.testing.assert_close(mine, expected)
