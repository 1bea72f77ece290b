"""A formula with analytic gradients as one autograd function: native, compiled, or operation by operation.

Native kernels run on a CPU, one pass over memory each way. Compiled code does the same on a GPU and keeps its inputs:
the backward pass recomputes the rest. Operation by operation it keeps the factors of its gradients.
"""

import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

KINDS = 128  # of one formula: ranks, sizes of one, layouts, types, with a mask and without
Gradients = tuple[Tensor | None, ...]

log = logging.getLogger(__name__)


class Formula(Function):
    """A function of tensors, numbers and Nones; a subclass says what its value and its gradients are.

    ``of(*inputs, compiled)`` returns the value, differentiable. Compiled it takes tensors and Nones alone: numbers
    would be compiled in.

    Attributes:
        multiplied: whether the value is a factor of a matrix product. Compiled, it then has the type that autocast
            multiplies in, and its gradient is read so, which spares the casts.
        value: ``(needs, *inputs)`` -> the value, then what ``gradients`` gets. ``needs`` says which inputs are to have
            a gradient.
        gradients: ``(grad, needs, shapes, *kept)`` -> the gradients of the first inputs, each of its own shape; the
            others have none. ``shapes`` are those of the inputs, ``kept`` is what ``value`` returned behind the value.
        native: ``(*inputs)`` -> the value, differentiable, or None if there is no kernel for the inputs.
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
        """Return the value, of any shape, of the inputs and whether it is compiled; keep what ``backward`` needs."""
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
        """Return the gradients of all inputs, each of its own shape."""
        needs = ctx.needs_input_grad
        found = ctx.gradients(grad, needs, ctx.shapes, *ctx.saved_tensors)
        return *found, *[None] * (len(needs) - len(found))


@functools.cache
def _valued(formula: Any) -> Callable[..., Tensor]:
    """Return the function that is compiled for the value."""

    def valued(kind: torch.dtype, *inputs: Tensor | None) -> Tensor:
        return formula.value([False] * len(inputs), *inputs)[0].to(kind)

    return valued


@functools.cache
def _compiled_gradients(formula: Any) -> Callable[..., Gradients]:
    """Return the compiled function for the gradients, which have the types of the inputs."""

    def graded(grad: Tensor, needs: Sequence[bool], *inputs: Tensor | None) -> list[Tensor | None]:
        _, *kept = formula.value(needs, *inputs)
        found = formula.gradients(grad, needs, _shapes(inputs), *kept)
        return [None if one is None or x is None else one.to(x.dtype) for one, x in zip(found, inputs, strict=False)]

    return lambda grad, needs, shapes, *inputs: _compiled(graded)(grad, needs, *_plain(inputs))


@functools.cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile once for all sizes: the blocks of a network have few shapes but each would be compiled anew.

    Ranks, sizes of one, layouts and types are compiled apart all the same: torch's limit of eight is too low for the
    activations of a MobileNetV2, and a formula beyond it fails.
    """
    limits: dict[str, Any] = {"recompile_limit": KINDS, "isolate_recompiles": True}  # torch's types don't know them
    return torch.compile(function, fullgraph=True, dynamic=True, **limits)


@functools.cache
def compiler_works(device: torch.device) -> bool:
    """Say whether code can be compiled for a GPU, by compiling something; if not, log why in one line."""
    if device.type == "cpu":  # where native kernels are as fast
        return False
    try:
        _compiled(_nothing)(torch.zeros(2, device=device))
    except (RuntimeError, TypeError) as error:  # a TypeError: older PyTorch has no such limits
        reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        log.warning("fused: nothing can be compiled for %s (%s); the operations run one by one", device, reason)
        return False
    return True


def _shapes(inputs: Sequence[Any]) -> list[torch.Size | None]:
    """Return the shapes of the tensors among the inputs."""
    return [x.shape if isinstance(x, Tensor) else None for x in inputs]


def _plain(inputs: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Return plain tensors: the sizes of parameters would be compiled in."""
    return [None if x is None else x.detach() for x in inputs]


def _product_type(weight: Tensor) -> torch.dtype:
    """Return the type in which autocast has a weight multiplied, else its own."""
    kind = weight.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight.dtype


def _nothing(x: Tensor) -> Tensor:
    return x + 1
