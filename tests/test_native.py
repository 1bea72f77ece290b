"""Native kernels: the bits of the plain formulas, sums at least as exact, and the same whatever the threads are."""

import pytest
import torch
from rounding_cases import SHAPES
from tensors import randn

from flexround.quant import native
from flexround.quant.activation import ActivationQuantizer
from flexround.quant.adaquant import AdaQuantFlexRound
from flexround.quant.adaround import AdaRound
from flexround.quant.flexround import FlexRound
from flexround.quant.formula import Formula
from flexround.quant.functions import RoundingRegularizer
from flexround.quant.grid import Scheme, channel_range, grid_from_range
from flexround.quant.lrq import LRQ
from flexround.quant.rounding import Axes
from flexround.quant.search import initial_grid
from flexround.quant.signround import SignRound
from flexround.reconstruct.cache import Batches

ROUNDINGS = {"flexround": FlexRound, "adaround": AdaRound, "lrq": LRQ, "both": AdaQuantFlexRound, "sign": SignRound}
WEIGHTS = SHAPES | {"wide": ((3, 5000), Axes(0)), "groups": ((6, 8, 20), Axes(0))}


def test_the_kernels_are_built():
    assert native.built()


def found(model, x, upstream):
    """Return the value and the gradients of an input and all parameters."""
    x = x.detach().clone().requires_grad_()
    model.zero_grad()
    value = model(x)
    value.backward(upstream)
    return value.detach(), [x.grad, *(parameter.grad for parameter in model.parameters())]


def native_and_plain(model, x, upstream, patch):
    """Return both, and the gradients in float64."""
    first = found(model, x, upstream)
    with patch.context() as plain:
        for formula in Formula.__subclasses__():
            plain.setattr(formula, "native", lambda *_: None)
        return first, found(model, x, upstream)


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("kind", WEIGHTS)
@pytest.mark.parametrize("per_channel", [False, True])
def test_weights(rounding, kind, per_channel, monkeypatch):
    shape, axes = WEIGHTS[kind]
    weight, upstream = randn(*shape) + 0.2, randn(*shape, seed=9)
    rows = weight.flatten(0, 1) if kind == "groups" else weight
    low, high = channel_range(rows, 0 if kind == "groups" else axes.output if per_channel else None)
    grid = grid_from_range(0.7 * low, 0.7 * high, Scheme(3, symmetric=False, axis=0), has_negatives=True)
    if kind == "groups":
        grid = type(grid)(grid.step.view(6, 8, 1), grid.zero_point.view(6, 8, 1), grid.qmin, grid.qmax)
    made = ROUNDINGS[rounding](weight, grid, axes)
    for number, parameter in enumerate(made.parameters()):
        parameter.data += 0.1 * randn(*parameter.shape, seed=number) - 0.2 * (rounding == "sign")
    (value, gradients), (plain, others) = native_and_plain(made, weight, upstream, monkeypatch)
    assert torch.equal(value, plain)
    for mine, theirs in zip(gradients, others, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)
    assert len({*value[0].flatten().tolist()}) > 2


@pytest.mark.parametrize("beta", [20.0, 2.0])
def test_the_regularizer(beta, monkeypatch):
    alpha = torch.nn.Parameter(3 * randn(70, 300))
    runs = []
    for threads in (2, 1):
        torch.set_num_threads(threads)
        runs.append((value := RoundingRegularizer.of(alpha, beta), *torch.autograd.grad(value, alpha)))
    plain = RoundingRegularizer.apply(alpha, beta, False)
    for value, gradient in runs:
        torch.testing.assert_close(value, plain)
        torch.testing.assert_close(gradient, *torch.autograd.grad(plain, alpha, retain_graph=True))
    assert torch.equal(runs[0][0], runs[1][0])


@pytest.mark.parametrize("probability", [1.0, 0.5, 0.3])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_activations(probability, layout, monkeypatch):
    """Some clipped; the gradient comes in another layout."""
    x = (randn(7, 5, 31, 29) + 0.1).contiguous(memory_format=layout)
    low, high = (x.quantile(q).reshape(()) for q in (0.02, 0.97))
    quantizer = ActivationQuantizer(grid_from_range(low, high, Scheme(4, symmetric=False), has_negatives=True))
    quantizer.raw_step.requires_grad_()
    runs = []
    for threads in (2, 1):
        torch.set_num_threads(threads)
        quantizer.keep_probability, quantizer.generator = probability, torch.Generator().manual_seed(0)
        runs.append(found(quantizer, x, randn(*x.shape, seed=9)))
    quantizer.generator.manual_seed(0)
    with monkeypatch.context() as plain:
        for formula in Formula.__subclasses__():
            plain.setattr(formula, "native", lambda *_: None)
        value, (grad_x, grad_step) = found(quantizer, x, randn(*x.shape, seed=9))
    for mine, (mine_x, mine_step) in runs:
        assert torch.equal(mine, value)
        assert torch.equal(mine_x, grad_x)
        torch.testing.assert_close(mine_step, grad_step, rtol=1e-4, atol=1e-3)
    assert runs[0][1][1] == runs[1][1][1]
    assert (grad_x == 0).any()


@pytest.mark.parametrize("axis", [None, 0])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_the_search_finds_the_same_grid(axis, layout, monkeypatch):
    x = (randn(6, 5, 9, 7) + 0.3).contiguous(memory_format=layout)
    found = initial_grid(x, Scheme(3, symmetric=False, axis=axis))
    monkeypatch.setattr(native, "distance", lambda *_: None)
    plain = initial_grid(x, Scheme(3, symmetric=False, axis=axis))
    assert torch.equal(found.step, plain.step)
    assert torch.equal(found.zero_point, plain.zero_point)


def test_mixed_rows(monkeypatch):
    full, quantized = (randn(9, 6, 10, 11, seed=seed).contiguous(memory_format=torch.channels_last) for seed in (0, 1))
    drawn = []
    for fits in (native.fits, lambda *_: False):
        monkeypatch.setattr(native, "fits", fits)
        generators = [torch.Generator().manual_seed(seed) for seed in (2, 3)]
        batches = Batches(quantized, full, full, None, False, 4, 0.5, False, *generators)
        drawn.append([batches.draw()[0] for _ in range(3)])
    for mine, plain in zip(*drawn, strict=True):
        assert torch.equal(mine, plain)
        assert mine.stride() == plain.stride()
