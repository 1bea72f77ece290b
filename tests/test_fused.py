"""Fake quantization compiled: the same numbers as operation by operation, and what happens where it can't be."""

import functools

import pytest
import tensors
import torch
import toy

from flexround.errors import SettingsError
from flexround.quant import formula
from flexround.quant.activation import ActivationQuantizer
from flexround.quant.adaquant import AdaQuant
from flexround.quant.adaround import AdaRound
from flexround.quant.flexround import FlexRound
from flexround.quant.functions import StepQuantize
from flexround.quant.grid import Scheme, channel_range, grid_from_range
from flexround.quant.rounding import Axes, Rounding
from flexround.reconstruct import phases

CPU = torch.device("cpu")
DIGITS = {"rtol": 1e-5, "atol": 1e-6}  # of float32, sums in another order
pytestmark = pytest.mark.last
needs_compiler = pytest.mark.usefixtures("compiler")


@pytest.fixture
def compiler():
    if not formula.compiler_works(CPU):  # asked when a test runs: it compiles something
        pytest.skip("no C++ compiler")


def learned(rounding_class, shape, axis=0):
    """Return a rounding somewhere in its learning, some weights clipped, and its weight."""
    weight = tensors.randn(*shape) * 0.1
    low, high = channel_range(weight, axis)
    grid = grid_from_range(0.7 * low, 0.7 * high, Scheme(4, symmetric=False, axis=axis), has_negatives=True)
    made = rounding_class(weight, grid, Axes(0, 1 if weight.ndim == 4 else None))
    for number, parameter in enumerate(made.parameters()):
        parameter.data += 0.05 * tensors.randn(*parameter.shape, seed=number)
    return made, weight


def values(made, weight, on, kind=torch.float32):
    """Return Ŵ, the regulariser and all gradients, as a block in autocast to ``kind`` would get them."""
    made.fuse(on)
    made.zero_grad()
    weight.grad = None
    with torch.autocast("cpu", kind, enabled=kind != torch.float32):
        quantized = made(weight)
        product = torch.nn.functional.linear(torch.eye(weight[0].numel()), quantized.flatten(1))
    regularizer = made.regularizer(7.3)
    total = product.float().mul(tensors.randn(*product.shape, seed=9)).sum()
    (total if regularizer is None else total + regularizer).backward()
    gradients = [parameter.grad for parameter in made.parameters()]
    return [quantized.detach(), regularizer, weight.grad, *gradients]


@needs_compiler
@pytest.mark.parametrize(
    ("rounding_class", "shape", "axis"),
    [
        (FlexRound, (48, 40), 0),
        (FlexRound, (40, 72), None),
        (FlexRound, (8, 6, 3, 3), 0),
        (AdaQuant, (48, 40), 0),
        (AdaRound, (48, 40), 0),
    ],
)
def test_compiled_values_and_gradients_are_those_of_the_operations_one_by_one(rounding_class, shape, axis):
    made, weight = learned(rounding_class, shape, axis)
    weight.requires_grad_()
    for plain, compiled in zip(values(made, weight, False), values(made, weight, True), strict=True):
        assert (compiled is None) == (plain is None)
        if plain is not None:
            torch.testing.assert_close(compiled, plain, **DIGITS)


@needs_compiler
@pytest.mark.parametrize("rounding_class", [FlexRound, AdaRound])
def test_under_autocast_the_weight_comes_in_the_type_of_the_products_and_gradients_in_float32(rounding_class):
    made, weight = learned(rounding_class, (48, 40))
    (plain, *others), (compiled, *same) = (values(made, weight, on, torch.bfloat16) for on in (False, True))
    assert (plain.dtype, compiled.dtype) == (torch.float32, torch.bfloat16)
    torch.testing.assert_close(compiled, plain.bfloat16())
    for gradient, expected in zip(same, others, strict=True):
        if expected is not None:
            assert gradient.dtype == torch.float32
            torch.testing.assert_close(gradient, expected, **DIGITS)


def steps(x, kept, on):
    """Return x̂ of a quantizer of activations, 5 % of them clipped, and the gradients of x and the step."""
    low, high = (x.quantile(q).reshape(()) for q in (0.02, 0.97))
    quantizer = ActivationQuantizer(grid_from_range(low, high, Scheme(4, symmetric=False, axis=None), True))
    quantizer.raw_step.requires_grad_()
    quantizer.fuse(on)
    if kept is not None:
        quantizer.keep_probability, quantizer.generator = kept, torch.Generator().manual_seed(0)
    return quantizer, x.clone().requires_grad_()


@needs_compiler
@pytest.mark.parametrize("kept", [None, 0.5])
@pytest.mark.parametrize("shape", [(6, 40, 24), (5, 8, 7, 7)])
def test_compiled_activations_and_gradients_are_those_of_the_operations_one_by_one(shape, kept):
    found = []
    for on in (False, True):
        quantizer, x = steps(tensors.randn(*shape), kept, on)
        quantized = quantizer(x)
        quantized.mul(tensors.randn(*shape, seed=9)).sum().backward()
        found.append((quantized.detach(), x.grad, quantizer.raw_step.grad))
    (plain, plain_x, plain_step), (compiled, compiled_x, compiled_step) = found
    torch.testing.assert_close(compiled, plain, **DIGITS)
    assert torch.equal(compiled_x, plain_x)
    torch.testing.assert_close(compiled_step, plain_step, rtol=1e-4, atol=1e-3)
    assert plain_step.abs() > 0.1
    assert (plain_x == 0).any(), "nothing clipped"


@needs_compiler
def test_compiled_activations_of_half_precision_are_quantized_in_float32():
    x = tensors.randn(6, 40, 24).bfloat16()
    (plain, one), (compiled, two) = (steps(x.float(), None, False), steps(x.float(), None, True))
    expected, found = (
        plain(one.detach().bfloat16().requires_grad_()),
        compiled(half := two.detach().bfloat16().requires_grad_()),
    )
    assert found.dtype == torch.float32
    assert torch.equal(found.bfloat16(), expected)
    found.sum().backward()
    assert half.grad.dtype == torch.bfloat16


@needs_compiler
@pytest.mark.parametrize(
    ("recipe", "settings"),
    [
        (toy.recipe("B", "flexround", 4), {"iters": 20}),
        (toy.recipe("B", "adaround", 4), {"iters": 40, "lr": 0.03, "reg_weight": 0.01}),
        (toy.recipe("Q", "flexround", 4, 4), {"iters": 20}),
    ],
)
def test_a_short_reconstruction_finds_the_same_codes_and_steps(tmp_path, recipe, settings):
    """In a long one last digits grow, as they do from inputs changed by 1e-7 (docs/developers.md)."""
    start, *_ = toy.run(toy.job(recipe, iters=0), tmp_path / "start")
    plain, *_ = toy.run(toy.job(recipe, **settings), tmp_path / "plain")
    compiled, records, _ = toy.run(toy.job(recipe, fused=True, **settings), tmp_path / "fused")
    assert all(record["fused"] is True for record in records)
    assert plain.keys() == compiled.keys()
    assert any(key.startswith("activation/") for key in plain) == (recipe.a_bits is not None)
    assert any(not torch.equal(start[key], plain[key]) for key in plain if key.endswith(":codes")), "nothing learned"
    for key, value in plain.items():
        if key.endswith(":codes"):
            assert torch.equal(compiled[key], value), key
        else:
            torch.testing.assert_close(compiled[key], value, rtol=1e-4, atol=1e-6)


def test_without_a_compiler_a_line_says_so_and_nothing_changes(tmp_path, monkeypatch, caplog):
    def missing(*_, **__):
        raise RuntimeError("\nno g++ here\nset CXX")

    recipe = toy.recipe("B", "flexround", 3)
    plain, *_ = toy.run(toy.job(recipe, iters=5), tmp_path / "plain")
    monkeypatch.setattr(formula, "_compiled", missing)
    monkeypatch.setattr(phases, "compiler_works", formula.compiler_works.__wrapped__)
    again, records, _ = toy.run(toy.job(recipe, iters=5, fused=True), tmp_path / "again")
    assert "nothing can be compiled for cpu (no g++ here)" in caplog.text
    assert all(torch.equal(again[key], plain[key]) for key in plain)
    assert all(record["fused"] is False for record in records)


class Own(Rounding):
    """A rounding that knows nothing of compiling."""


def test_a_rounding_that_can_not_be_compiled_is_an_error_before_anything_runs():
    recipe = toy.recipe("B", f"{Own.__module__}:Own", 3)
    with pytest.raises(SettingsError, match=r"fused: true, but rounding test_fused:Own .* set fused: false"):
        toy.job(recipe, fused=True)
    assert toy.job(recipe).rounding is Own


def test_a_network_may_have_activations_of_many_kinds(monkeypatch):
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))  # not to wait for C++
    formula._compiled.cache_clear()
    step, low, high = torch.tensor(0.1), torch.tensor(-8.0), torch.tensor(7.0)
    for rank in range(1, 13):
        x = tensors.randn(*[2] * rank).requires_grad_()
        StepQuantize.apply(x, step, low, high, None, True).sum().backward()
        assert x.grad.shape == x.shape
    formula._compiled.cache_clear()
