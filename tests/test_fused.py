"""Fake quantization compiled: the same numbers as operation by operation, and what happens where it can't be."""

import pytest
import tensors
import torch
import toy

from flexround.quant import formula
from flexround.quant.activation import ActivationQuantizer
from flexround.quant.adaround import AdaRound
from flexround.quant.flexround import FlexRound
from flexround.quant.grid import Scheme, channel_range, grid_from_range
from flexround.quant.rounding import Axes
from flexround.quant.signround import SignRound
from flexround.reconstruct import phases

CPU = torch.device("cpu")
DIGITS = {"rtol": 1e-5, "atol": 1e-6}  # of float32, sums in another order
pytestmark = pytest.mark.last
needs_compiler = pytest.mark.usefixtures("compiler")


@pytest.fixture
def compiler(monkeypatch):
    """Compile for a CPU, as for a GPU."""
    monkeypatch.setattr(phases, "compiler_works", lambda _: True)


def values(made, weight, on, kind):
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
    return [quantized.detach(), regularizer, weight.grad, *(parameter.grad for parameter in made.parameters())]


@needs_compiler
@pytest.mark.parametrize(
    ("rounding_class", "shape", "kind"),
    [
        (FlexRound, (8, 5, 3, 3), torch.float32),
        (AdaRound, (8, 5, 3, 3), torch.bfloat16),
        (SignRound, (24, 20), torch.float32),
    ],
)
def test_compiled_weights_are_those_of_plain_operations(rounding_class, shape, kind):
    """Somewhere in learning, some weights clipped; the value in the type of the products, the rest in float32."""
    weight = tensors.randn(*shape) * 0.1
    low, high = channel_range(weight, 0)
    grid = grid_from_range(0.7 * low, 0.7 * high, Scheme(4, symmetric=False, axis=0), has_negatives=True)
    made = rounding_class(weight, grid, Axes(0, 1 if len(shape) == 4 else None))
    for number, parameter in enumerate(made.parameters()):
        parameter.data += 0.05 * tensors.randn(*parameter.shape, seed=number)
    weight.requires_grad_()
    (plain, *others), (compiled, *same) = (values(made, weight, on, kind) for on in (False, True))
    assert (plain.dtype, compiled.dtype) == (torch.float32, kind)
    torch.testing.assert_close(compiled, plain.to(kind), **(DIGITS if kind == torch.float32 else {}))
    for found, expected in zip(same, others, strict=True):
        assert (found is None) == (expected is None)
        if expected is not None:
            torch.testing.assert_close(found, expected, **DIGITS)


@needs_compiler
@pytest.mark.parametrize(
    ("shape", "kept", "kind"), [((5, 8, 7, 7), 0.5, torch.float32), ((6, 40, 24), None, torch.bfloat16)]
)
def test_compiled_activations_are_those_of_plain_operations(shape, kept, kind):
    """5 % of them clipped; of half precision they are quantized in float32."""
    found = []
    for on in (False, True):
        x = tensors.randn(*shape).to(kind)
        if len(shape) == 4:  # the gradient comes in another layout
            x = x.to(memory_format=torch.channels_last)
        low, high = (x.float().quantile(q).reshape(()) for q in (0.02, 0.97))
        quantizer = ActivationQuantizer(grid_from_range(low, high, Scheme(4, symmetric=False, axis=None), True))
        quantizer.raw_step.requires_grad_()
        quantizer.fuse(on)
        if kept is not None:
            quantizer.keep_probability, quantizer.generator = kept, torch.Generator().manual_seed(0)
        quantized = quantizer(x.requires_grad_())
        quantized.float().mul(tensors.randn(*shape, seed=9).to(kind)).sum().backward()
        found.append((quantized.detach(), x.grad, quantizer.raw_step.grad))
    (plain, plain_x, plain_step), (compiled, compiled_x, compiled_step) = found
    assert compiled.dtype == torch.float32
    torch.testing.assert_close(compiled.to(kind), plain, **DIGITS)
    assert torch.equal(compiled_x, plain_x)
    torch.testing.assert_close(compiled_step, plain_step, rtol=1e-4, atol=1e-3)
    assert plain_step.abs() > 0.1
    assert (plain_x == 0).any(), "nothing clipped"


@needs_compiler
def test_a_short_reconstruction_finds_the_same_codes_and_steps(tmp_path):
    """In a long one last digits grow, as they do from inputs changed by 1e-7 (docs/developers.md).

    On some CPUs one weight lies so near to the border of two codes that they decide its code.
    """
    recipe, settings = toy.recipe("Q", "flexround", 4, 4), {"net": toy.model(depth=1), "iters": 10}
    start, *_ = toy.run(toy.job(recipe, **settings | {"iters": 0}), tmp_path / "start")
    plain, *_ = toy.run(toy.job(recipe, **settings), tmp_path / "plain")
    compiled, records, _ = toy.run(toy.job(recipe, fused=True, **settings), tmp_path / "fused")
    assert all(record["kernels"] == "compiled" for record in records)
    assert plain.keys() == compiled.keys()
    assert any(not torch.equal(start[key], plain[key]) for key in plain if key.endswith(":codes")), "nothing learned"
    for key, value in plain.items():
        if key.endswith(":codes"):
            assert (compiled[key].int() - value.int()).abs().sum() <= 1
        else:
            torch.testing.assert_close(compiled[key], value, rtol=1e-4, atol=1e-6)


def test_without_a_compiler_a_line_says_so_and_nothing_changes(tmp_path, monkeypatch, caplog):
    def missing(*_, **__):
        raise RuntimeError("\nno g++ here\nset CXX")

    recipe = toy.recipe("B", "flexround", 3)
    plain, *_ = toy.run(toy.job(recipe, iters=5), tmp_path / "plain")
    monkeypatch.setattr(formula, "_compiled", missing)
    works = formula.compiler_works.__wrapped__
    monkeypatch.setattr(phases, "compiler_works", lambda _: works(torch.device("meta")))
    again, records, _ = toy.run(toy.job(recipe, iters=5, fused=True), tmp_path / "again")
    assert "nothing can be compiled for meta (no g++ here)" in caplog.text
    assert toy.same(again, plain)
    assert all(record["kernels"] == "native" for record in records)
