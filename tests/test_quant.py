"""Grids, step search, roundings and the activation quantizer against their formulas."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck

from flexround.quant.activation import ActivationQuantizer, keep_mask
from flexround.quant.adaquant import AdaQuant, AdaQuantFlexRound
from flexround.quant.adaround import AdaRound
from flexround.quant.flexround import FlexRound
from flexround.quant.functions import DivideRound, RectifiedSigmoidRound, RoundingRegularizer, StepQuantize
from flexround.quant.grid import Grid, Scheme, grid_from_range, nearest_codes
from flexround.quant.rounding import Axes
from flexround.quant.rtn import RTN
from flexround.quant.search import initial_grid, mean_error

ROUNDINGS = [RTN, AdaRound, AdaQuant, FlexRound, AdaQuantFlexRound]


def randn(*shape, seed=0, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


# --- grids ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", range(2, 9))
def test_symmetric_step_and_range_follow_the_formula(bits):
    grid = grid_from_range(torch.tensor(-3.0), torch.tensor(2.0), Scheme(bits), has_negatives=True)
    assert (grid.qmin, grid.qmax) == (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    assert grid.step.item() == pytest.approx(3.0 / ((2**bits - 1) / 2))
    assert grid.zero_point.item() == 0


@pytest.mark.parametrize("bits", range(2, 9))
def test_symmetric_grid_of_a_one_sided_tensor_uses_all_codes(bits):
    grid = initial_grid(torch.rand(100), Scheme(bits), "minmax")
    assert (grid.qmin, grid.qmax) == (0, 2**bits - 1)
    assert nearest_codes(torch.tensor([1e9]), grid).item() == 2**bits - 1


def test_asymmetric_grid_holds_zero_exactly_and_equals_torchs_own_fake_quantize():
    x = randn(64, 9) + 0.7
    grid = initial_grid(x, Scheme(4, symmetric=False), "minmax")
    ours = nearest_codes(x, grid) * grid.step
    theirs = torch.fake_quantize_per_tensor_affine(x, grid.step, grid.zero_point.int(), 0, 15)
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7)
    assert (nearest_codes(torch.zeros(1), grid) * grid.step).item() == 0


def test_per_channel_grid_equals_torchs_own_fake_quantize():
    x = randn(6, 5, 3, 3) * torch.arange(1, 7).view(6, 1, 1, 1)
    grid = initial_grid(x, Scheme(4, symmetric=False, axis=0), "minmax")
    theirs = torch.fake_quantize_per_channel_affine(x, grid.step.flatten(), grid.zero_point.flatten().int(), 0, 0, 15)
    torch.testing.assert_close(nearest_codes(x, grid) * grid.step, theirs, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("bits", [0, 1, 9, 17])
def test_impossible_bits_are_refused(bits):
    with pytest.raises(ValueError, match=f"bits={bits}"):
        Scheme(bits)


def test_nan_empty_and_unknown_method_are_refused():
    with pytest.raises(ValueError, match="1 of 3 values are NaN"):
        initial_grid(torch.tensor([1.0, float("nan"), 2.0]), Scheme(4))
    with pytest.raises(ValueError, match="empty"):
        initial_grid(torch.empty(0), Scheme(4))
    with pytest.raises(ValueError, match="minmax, mse or mse-exact"):
        initial_grid(torch.ones(3), Scheme(4), "ems")


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("value", [0.0, 0.25, -3.0])
def test_constant_tensors_are_represented_exactly_or_to_half_a_step(symmetric, value):
    x = torch.full((4, 4), value)
    grid = initial_grid(x, Scheme(4, symmetric))
    assert torch.isfinite(grid.step)
    assert ((nearest_codes(x, grid) * grid.step - x).abs() <= grid.step / 2 + 1e-7).all()


def test_an_all_zero_channel_stays_zero_and_does_not_disturb_the_others():
    x = randn(3, 50)
    x[1] = 0
    grid = initial_grid(x, Scheme(4, axis=0))
    assert (nearest_codes(x, grid)[1] == 0).all()
    alone = initial_grid(x[2:], Scheme(4, axis=0))
    assert grid.step[2] == alone.step[0]


# --- search --------------------------------------------------------------------------------------------------------


def brute_force(x, bits, symmetric, p):
    """Independent oracle: plain loops over ranges and zero points, in float64."""
    x = x.double()
    low, high = min(x.min().item(), 0), max(x.max().item(), 0)
    best = float("inf")
    levels = 2**bits - 1
    for i in range(1, 101):
        if symmetric and low < 0:
            step = max(-low, high) * i / 100 / (levels / 2)
            options = [(step, -(2 ** (bits - 1)), 2 ** (bits - 1) - 1)]
        elif symmetric or low == 0:
            options = [(high * i / 100 / levels, 0, levels)]
        else:
            step = (high - low) * i / 100 / levels
            options = [(step, -zero, levels - zero) for zero in range(levels + 1)]
        for step, a, b in options:
            error = (((x / step).round().clamp(a, b) * step - x).abs() ** p).mean().item()
            best = min(best, error)
    return best


@pytest.mark.parametrize("p", [2.0, 2.4])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("bits", [2, 3, 4])
@pytest.mark.parametrize("shape", ["normal", "one-sided", "heavy"])
def test_exact_search_equals_brute_force_and_the_fast_one_is_within_a_percent(bits, symmetric, p, shape):
    x = randn(600, seed=bits)
    x = {"normal": x, "one-sided": x.abs(), "heavy": x**3 + 0.5}[shape]
    oracle = brute_force(x, bits, symmetric, p)
    scheme = Scheme(bits, symmetric)
    exact = mean_error(x, initial_grid(x, scheme, "mse-exact", p), None, p).item()
    fast = mean_error(x, initial_grid(x, scheme, "mse", p), None, p).item()
    assert exact == pytest.approx(oracle, rel=1e-4)
    assert fast <= 1.01 * oracle


def test_fast_search_is_within_a_percent_at_eight_bits():
    x = randn(3000) + 0.3
    scheme = Scheme(8, symmetric=False)
    exact = mean_error(x, initial_grid(x, scheme, "mse-exact"), None, 2.4)
    assert mean_error(x, initial_grid(x, scheme), None, 2.4) <= 1.01 * exact


def test_per_channel_search_equals_the_search_of_each_channel_alone():
    x = randn(5, 200) * torch.tensor([[0.1], [1.0], [10.0], [0.5], [3.0]])
    together = initial_grid(x, Scheme(3, symmetric=False, axis=0))
    for row in range(5):
        alone = initial_grid(x[row : row + 1], Scheme(3, symmetric=False, axis=0))
        torch.testing.assert_close(together.step[row], alone.step[0])
        assert together.zero_point[row] == alone.zero_point[0]


def test_search_beats_min_max_with_an_outlier():
    x = torch.cat([randn(50_000), torch.tensor([30.0])])
    scheme = Scheme(4)
    assert mean_error(x, initial_grid(x, scheme), None, 2.0) < 0.7 * mean_error(
        x, initial_grid(x, scheme, "minmax"), None, 2.0
    )


# --- roundings -----------------------------------------------------------------------------------------------------

SHAPES = {
    "linear": ((7, 5), Axes(0)),
    "conv": ((6, 4, 3, 3), Axes(0, 1)),
    "grouped": ((8, 2, 3, 3), Axes(0, 1)),
    "depthwise": ((8, 1, 3, 3), Axes(0, 1)),
    "conv1d": ((5, 7), Axes(1)),
}


def make(cls, kind="conv", axis=None, bits=3, **options):
    shape, axes = SHAPES[kind]
    weight = randn(*shape, seed=3) * 0.2
    grid = initial_grid(weight, Scheme(bits, axis=axis))
    return weight, grid, cls(weight, grid, axes, **options)


@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize("cls", [RTN, AdaQuant, FlexRound, AdaQuantFlexRound])
@pytest.mark.parametrize("per_channel", [False, True])
def test_every_rounding_but_adaround_starts_at_round_to_nearest(cls, kind, per_channel):
    axis = SHAPES[kind][1].output if per_channel else None
    weight, grid, rounding = make(cls, kind, axis)
    expected = nearest_codes(weight, grid)
    assert torch.equal(rounding.codes(weight), expected)
    torch.testing.assert_close(rounding(weight), expected * grid.step)
    torch.testing.assert_close(rounding.step(), grid.step)


def test_flexround_at_step_zero_is_rtn_bit_for_bit():
    weight, _, flex = make(FlexRound)
    _, _, rtn = make(RTN)
    assert torch.equal(flex(weight), rtn(weight))


def test_direct_and_log_form_agree_at_the_start_and_move_alike():
    weight, _, log = make(FlexRound)
    _, _, direct = make(FlexRound, form="direct")
    torch.testing.assert_close(log(weight), direct(weight))
    with torch.no_grad():
        log.d2.add_(0.3), direct.d2.mul_(torch.tensor(0.3).exp())
    assert torch.equal(log.codes(weight), direct.codes(weight))
    with pytest.raises(ValueError, match="log or direct"):
        make(FlexRound, form="linear")


def test_adaround_starts_in_full_precision_and_ends_up_or_down():
    weight, grid, rounding = make(AdaRound, bits=8)
    inside = (weight / grid.step).floor().clamp(grid.qmin, grid.qmax - 1) == (weight / grid.step).floor()
    torch.testing.assert_close(rounding(weight)[inside], weight[inside], rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        rounding.alpha.copy_(torch.where(randn(*weight.shape) > 0, 20.0, -20.0))
    assert torch.equal(rounding.codes(weight) * grid.step, rounding(weight))
    assert ((rounding.codes(weight) - weight / grid.step).abs()[inside] <= 1).all()


def test_scales_have_the_papers_shapes():
    for kind, (s3, s4) in {
        "linear": ((7, 1), None),
        "conv": ((6, 1, 1, 1), (1, 4, 1, 1)),
        "depthwise": ((8, 1, 1, 1), (1, 1, 1, 1)),
        "conv1d": ((1, 7), None),
    }.items():
        _, _, rounding = make(FlexRound, kind)
        assert tuple(rounding.d3.shape) == s3
        assert rounding.d4 is None if s4 is None else tuple(rounding.d4.shape) == s4
    _, _, ablated = make(FlexRound, use_s3_s4=False, learn_s1=False)
    assert ablated.d3 is None
    assert ablated.d4 is None
    assert not ablated.d1.requires_grad
    assert ablated.d1 not in set(ablated.groups()["all"])


def test_s3_scales_whole_output_channels_also_of_a_transposed_weight():
    for kind in ("conv", "conv1d", "linear"):
        weight, grid, rounding = make(FlexRound, kind, bits=8)
        with torch.no_grad():
            rounding.d3.view(-1)[2] = torch.tensor(2.0).log()
        changed = (rounding.codes(weight) != nearest_codes(weight, grid)).transpose(0, SHAPES[kind][1].output)
        assert changed[2].any()
        assert not torch.cat([changed[:2], changed[3:]]).any()


@given(
    bits=st.integers(2, 8),
    seed=st.integers(0, 1000),
    kind=st.sampled_from(sorted(SHAPES)),
    cls=st.sampled_from(ROUNDINGS),
)
@settings(max_examples=60, deadline=None)
def test_codes_stay_on_the_grid_whatever_the_parameters(bits, seed, kind, cls):
    weight, grid, rounding = make(cls, kind, bits=bits)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in rounding.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator))
    codes = rounding.codes(weight)
    assert torch.equal(codes, codes.round())
    assert codes.min() >= grid.qmin
    assert codes.max() <= grid.qmax
    assert rounding.step() > 0


# --- gradients -----------------------------------------------------------------------------------------------------


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
    out, expected = DivideRound.apply(*ours, -4.0, 3.0), plain_flexround(*plain, -4.0, 3.0)
    assert (out.abs() == 4 * ours[1].exp()).any(), "the case must include clipped weights"
    torch.testing.assert_close(out, expected)
    out.backward(upstream), expected.backward(upstream)
    for mine, theirs in zip(ours, plain, strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad)


def test_divide_round_gradient_is_that_of_its_surrogate_by_finite_differences():
    """The straight-through surrogate: rounding replaced by u + (the residual of rounding, frozen)."""
    inputs = flexround_inputs()
    with torch.no_grad():
        u = inputs[0] / (inputs[1] + inputs[2] + inputs[3] + inputs[4]).exp()
        residual = u.round() - u
        inside = (u.round() >= -4) & (u.round() <= 3)
        bound = u.round().clamp(-4, 3)

    def surrogate(weight, d1, d2, d3, d4):
        u = weight / (d1 + d2 + d3 + d4).exp()
        return d1.exp() * torch.where(inside, u + residual, bound)

    assert gradcheck(surrogate, inputs)
    out = DivideRound.apply(*inputs, -4.0, 3.0)
    expected = surrogate(*inputs)
    torch.testing.assert_close(out, expected)
    for mine, theirs in zip(
        torch.autograd.grad(out.square().sum(), inputs),
        torch.autograd.grad(expected.square().sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs)


def test_proposition_3_1():
    """dL/dS' = -W / S'^2 * dL/dW_hat, so the gradient is proportional to the weight (s1 has no part in it)."""
    weight, d1, d2, *_ = flexround_inputs()
    scale = d2.detach().exp().requires_grad_()
    out = DivideRound.apply(weight.detach(), d1.detach(), scale.log(), None, None, -1000.0, 1000.0)
    upstream = randn(*out.shape, seed=5, dtype=torch.float64)
    (grad,) = torch.autograd.grad(out, scale, upstream)
    torch.testing.assert_close(grad, -weight.detach() / scale.detach() ** 2 * upstream)


def test_rectified_sigmoid_round_equals_the_plain_formula():
    alpha = randn(5, 6, dtype=torch.float64).mul(3).requires_grad_()
    floor, step = randn(5, 6, seed=1, dtype=torch.float64).mul(4).floor(), torch.tensor(0.3, dtype=torch.float64)

    def plain(alpha):
        return step * (floor + (1.2 * alpha.sigmoid() - 0.1).clamp(0, 1)).clamp(-4, 3)

    out, expected = RectifiedSigmoidRound.apply(alpha, floor, step, -4.0, 3.0), plain(alpha)
    torch.testing.assert_close(out, expected)
    upstream = randn(5, 6, seed=2, dtype=torch.float64)
    torch.testing.assert_close(
        torch.autograd.grad(out, alpha, upstream)[0], torch.autograd.grad(expected, alpha, upstream)[0]
    )
    assert gradcheck(lambda a: RectifiedSigmoidRound.apply(a, floor, step, -100.0, 100.0), alpha)


@pytest.mark.parametrize("beta", [20.0, 7.3, 2.0])
def test_regularizer_equals_the_plain_formula(beta):
    alpha = randn(40, dtype=torch.float64).mul(2).requires_grad_()
    h = (1.2 * alpha.sigmoid() - 0.1).clamp(0, 1)
    expected = (1 - (2 * h - 1).abs().pow(beta)).sum()
    out = RoundingRegularizer.apply(alpha, beta)
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(torch.autograd.grad(out, alpha)[0], torch.autograd.grad(expected, alpha)[0])


@pytest.mark.parametrize("masked", [False, True])
def test_step_quantize_equals_the_plain_formula(masked):
    x = randn(8, 20, dtype=torch.float64).requires_grad_()
    step = torch.tensor(0.2, dtype=torch.float64, requires_grad=True)
    kept = (randn(8, 20, seed=4) > 0).double() if masked else None

    def plain(x, step):
        quantized = clamp_open(PlainRound.apply(x / step), -4, 3) * step
        return quantized if kept is None else torch.where(kept > 0, quantized, x)

    out, expected = StepQuantize.apply(x, step, -4.0, 3.0, kept), plain(x, step)
    torch.testing.assert_close(out, expected)
    upstream = randn(8, 20, seed=6, dtype=torch.float64)
    for mine, theirs in zip(
        torch.autograd.grad(out, (x, step), upstream),
        torch.autograd.grad(expected, (x, step), upstream),
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs)


# --- activations ---------------------------------------------------------------------------------------------------


def test_activation_step_is_positive_whatever_the_parameter():
    quantizer = ActivationQuantizer(Grid(torch.tensor(0.1), torch.tensor(0.0), 0, 15))
    for value in (-0.3, 0.0, 1e-20, 5.0):
        quantizer.raw_step.data.fill_(value)
        assert quantizer.step() > 0
        assert torch.isfinite(quantizer(torch.ones(3))).all()


def test_evaluation_never_drops_and_equals_the_training_path():
    quantizer = ActivationQuantizer(Grid(torch.tensor(0.1), torch.tensor(0.0), 0, 15))
    x = randn(50, 7).requires_grad_()
    with torch.no_grad():
        evaluated = quantizer(x)
    torch.testing.assert_close(quantizer(x), evaluated, rtol=0, atol=0)


@pytest.mark.parametrize("probability", [0.25, 0.5, 0.75])
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
        masks.append(keep_mask(torch.Size([3, 5, 7]), 0.5, torch.Generator().manual_seed(1), torch.float32))
    assert torch.equal(*masks)
    rows = keep_mask(torch.Size([64, 4096]), 0.5, torch.Generator().manual_seed(2), torch.float32)
    correlation = torch.corrcoef(rows)[~torch.eye(64, dtype=torch.bool)]
    assert correlation.abs().max() < 0.08, "neighbouring bytes of a word must be independent"


def test_schemes_cover_all_documented_combinations():
    for bits, symmetric, axis in itertools.product(range(2, 9), (True, False), (None, 0)):
        x = randn(4, 30)
        grid = initial_grid(x, Scheme(bits, symmetric, axis))
        codes = nearest_codes(x, grid) + grid.zero_point
        assert codes.min() >= grid.qmin
        assert codes.max() <= grid.qmax
