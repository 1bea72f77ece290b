"""Formulas with analytic gradients as autograd functions: native, compiled, or operation by operation.

Native kernels make one pass over a CPU's memory in each direction. Compiled code does the same on a GPU; it keeps only
its inputs, and the backward pass recomputes the rest. Operation by operation, the factors of the gradients are kept.
"""

import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

KINDS = 128  # compiled variants per formula: ranks, sizes of one, layouts, types, with and without a mask
Gradients = tuple[Tensor | None, ...]

log = logging.getLogger(__name__)


class Formula(Function):
    """A function of tensors, numbers and Nones; a subclass defines its value and its gradients.

    ``of(*inputs, compiled)`` returns the differentiable value. Compiled formulas take only tensors and Nones, because
    numbers would be compiled in.

    Attributes:
        multiplied: whether the value is a factor of a matrix product. Compiled, value and gradient then have autocast's
            type for products, which saves casts.
        value: ``(needs, *inputs)`` -> the value, then the tensors that ``gradients`` needs. ``needs`` tells, for each
            input, whether it needs a gradient.
        gradients: ``(grad, needs, shapes, *kept)`` -> the gradients of the first inputs, each with its input's shape;
            other inputs have none. ``shapes`` are the inputs' shapes, ``kept`` are the further results of ``value``.
        native: ``(*inputs)`` -> the differentiable value, or None if no kernel handles the inputs.
    """

    multiplied: ClassVar[bool] = False
    value: ClassVar[Callable[..., tuple[Any, ...]]]
    gradients: ClassVar[Callable[..., Gradients]]
    native: ClassVar[Callable[..., Tensor | None]] = staticmethod(lambda *_: None)

    @classmethod
    def of(cls, *inputs: Any, compiled: bool = False) -> Tensor:
        """Return the value, of any shape."""
        found = None if compiled else cls.native(*inputs)
        return cls.apply(*inputs, compiled) if found is None else found

    @staticmethod
    def forward(ctx: Any, *given: Any) -> Tensor:
        """Return the value, any shape; save tensors for ``backward``. ``given`` are the inputs and ``compiled``."""
        formula, inputs, compiled = ctx._forward_cls, given[:-1], given[-1]
        ctx.shapes = _shapes(inputs)
        if compiled:
            ctx.gradients = _compiled_gradients(formula)
            kind = _product_type(inputs[0]) if formula.multiplied else torch.float32
            value, kept = _compiled(_valued(formula))(kind, *_plain(inputs)), inputs
        else:
            ctx.gradients = formula.gradients
            value, *kept = formula.value(ctx.needs_input_grad, *inputs)
        ctx.save_for_backward(*kept)
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Gradients:
        """Return the gradients of all inputs, each with its input's shape."""
        needs = ctx.needs_input_grad
        found = ctx.gradients(grad, needs, ctx.shapes, *ctx.saved_tensors)
        return *found, *[None] * (len(needs) - len(found))


@functools.cache
def _valued(formula: Any) -> Callable[..., Tensor]:
    """Return the function, to be compiled, that computes the value."""

    def valued(kind: torch.dtype, *inputs: Tensor | None) -> Tensor:
        return formula.value([False] * len(inputs), *inputs)[0].to(kind)

    return valued


@functools.cache
def _compiled_gradients(formula: Any) -> Callable[..., Gradients]:
    """Return the compiled function that computes the gradients, each with its input's type."""

    def graded(grad: Tensor, needs: Sequence[bool], *inputs: Tensor | None) -> list[Tensor | None]:
        _, *kept = formula.value(needs, *inputs)
        found = formula.gradients(grad, needs, _shapes(inputs), *kept)
        return [None if one is None or x is None else one.to(x.dtype) for one, x in zip(found, inputs, strict=False)]

    return lambda grad, needs, shapes, *inputs: _compiled(graded)(grad, needs, *_plain(inputs))


@functools.cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function once for all sizes: otherwise each shape in a network would be compiled separately.

    Ranks, sizes of one, layouts and types still need separate compilations. PyTorch's limit of eight is too low for a
    MobileNetV2's activations, and a formula beyond the limit fails.
    """
    limits: dict[str, Any] = {"recompile_limit": KINDS, "isolate_recompiles": True}  # absent from torch's type stubs
    return torch.compile(function, fullgraph=True, dynamic=True, **limits)


@functools.cache
def compiler_works(device: torch.device) -> bool:
    """Return whether code can be compiled for a GPU, by a trial compilation; if not, log the reason in one line."""
    if device.type == "cpu":  # native kernels are as fast there
        return False
    try:
        _compiled(_nothing)(torch.zeros(2, device=device))
    except (RuntimeError, TypeError) as error:  # TypeError: older PyTorch lacks these limits
        reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        log.warning("fused: nothing can be compiled for %s (%s); the operations run one by one", device, reason)
        return False
    return True


def _shapes(inputs: Sequence[Any]) -> list[torch.Size | None]:
    """Return the shape of each input that is a tensor, else None."""
    return [x.shape if isinstance(x, Tensor) else None for x in inputs]


def _plain(inputs: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Return the inputs as plain tensors, because the sizes of parameters would be compiled in."""
    return [None if x is None else x.detach() for x in inputs]


def _product_type(weight: Tensor) -> torch.dtype:
    """Return autocast's type for products with a weight; without autocast, the weight's own type."""
    kind = weight.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight.dtype


def _nothing(x: Tensor) -> Tensor:
    return x + 1
