"""A formula with analytic gradients as one autograd function, which runs operation by operation or compiled.

Operation by operation it keeps what its gradients are made of. Compiled it is one pass over memory forward and one
backward, and keeps its inputs alone: the backward pass computes the rest again.
"""

import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch._prims_common import is_non_overlapping_and_dense_or_false as is_dense
from torch.autograd import Function
from torch.autograd.function import once_differentiable

KINDS = 128  # of one formula: ranks, sizes of one, short and long sums, types, with a mask and without
LARGE = 2**17  # elements; of fewer the calls of compiled code take longer than the operations (bench/RESULTS.md)
KERNEL = 4  # dimensions of a convolution's weight
Gradients = tuple[Tensor | None, ...]

log = logging.getLogger(__name__)


class Formula(Function):
    """A function of tensors, numbers and Nones; a subclass says what its value and its gradients are.

    ``apply(*inputs, compiled)`` returns the value, differentiable. Compiled it takes tensors and Nones alone: numbers
    would be compiled in.

    Attributes:
        multiplied: whether the value is a factor of a matrix product. Compiled, it then has the type that autocast
            multiplies in, and its gradient is read so, which spares the casts.
        elementwise: whether each input is one number or has the shape of the first one.
        value: ``(needs, *inputs)`` -> the value, then what ``gradients`` gets. ``needs`` says which inputs are to have
            a gradient.
        gradients: ``(grad, needs, shapes, compiled, *kept)`` -> the gradients of the first inputs, each of its own
            shape; the others have none. ``shapes`` are those of the inputs, ``kept`` is what ``value`` returned behind
            the value.
    """

    multiplied: ClassVar[bool] = False
    elementwise: ClassVar[bool] = False
    value: ClassVar[Callable[..., tuple[Any, ...]]]
    gradients: ClassVar[Callable[..., Gradients]]

    @staticmethod
    def forward(ctx: Any, *given: Any) -> Tensor:
        """Return the value, of any shape, of the inputs and whether it is compiled; keep what ``backward`` needs."""
        formula, inputs = ctx._forward_cls, list(given[:-1])
        ctx.compiled = runs_compiled(inputs[0], given[-1])
        if ctx.compiled:
            inputs = _alike(inputs) if formula.elementwise else inputs
            ctx.save_for_backward(*inputs)
            kind = _product_type(inputs[0]) if formula.multiplied else torch.float32
            value = _compiled(_valued(formula))(kind, *_rows(inputs, formula.elementwise))
            return _parted(value, inputs[0], inputs[0], formula.elementwise)
        ctx.shapes = _shapes(inputs)
        value, *kept = formula.value(ctx.needs_input_grad, *inputs)
        ctx.save_for_backward(*kept)
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Gradients:
        """Return the gradients of all inputs, each of its own shape."""
        formula, needs = ctx._forward_cls, ctx.needs_input_grad
        if ctx.compiled:
            inputs = ctx.saved_tensors
            if formula.elementwise:
                _, grad = _alike([inputs[0], grad])
            *rows, row = _rows([*inputs, grad], formula.elementwise)
            found = _compiled(_graded(formula))(row, needs, *rows)
            parted = functools.partial(_parted, first=inputs[0], elementwise=formula.elementwise)
            found = [None if row is None else parted(row, x) for row, x in zip(found, inputs, strict=False)]
        else:
            found = formula.gradients(grad, needs, ctx.shapes, False, *ctx.saved_tensors)
        return *found, *[None] * (len(needs) - len(found))


def runs_compiled(first: Tensor, wanted: bool) -> bool:
    """Say whether a formula whose first input, any shape, is this one is compiled where that is ``wanted``."""
    return wanted and first.numel() >= LARGE


@functools.cache
def _valued(formula: Any) -> Callable[..., Tensor]:
    """Return the function that is compiled for the value."""

    def valued(kind: torch.dtype, *inputs: Tensor | None) -> Tensor:
        return formula.value([False] * len(inputs), *inputs)[0].to(kind)

    return valued


@functools.cache
def _graded(formula: Any) -> Callable[..., list[Tensor | None]]:
    """Return the function that is compiled for the gradients, which have the types of the inputs."""

    def graded(grad: Tensor, needs: Sequence[bool], *inputs: Tensor | None) -> list[Tensor | None]:
        _, *kept = formula.value(needs, *inputs)
        found = formula.gradients(grad, needs, _shapes(inputs), True, *kept)
        return [None if one is None or x is None else one.to(x.dtype) for one, x in zip(found, inputs, strict=False)]

    return graded


@functools.cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile once for all sizes: the blocks of a network have few shapes but each would be compiled anew.

    Ranks, sizes of one, sums short and long and types are compiled apart all the same: torch's limit of eight is too
    low for the activations of a MobileNetV2, and a formula beyond it fails.
    """
    limits: dict[str, Any] = {"recompile_limit": KINDS, "isolate_recompiles": True}  # torch's types don't know them
    return torch.compile(function, fullgraph=True, dynamic=True, **limits)


@functools.cache
def compiler_works(device: torch.device) -> bool:
    """Say whether code can be compiled for a device, by compiling something; if not, log why in one line."""
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


def _alike(inputs: Sequence[Any]) -> list[Any]:
    """Return inputs of one shape in one memory layout, that of the first one if it has no gaps; numbers as they are."""
    first = inputs[0] if is_dense(inputs[0]) else inputs[0].contiguous()

    def copied(x: Any) -> Any:
        same = x is None or not x.ndim or x.stride() == first.stride()
        return x if same else torch.empty_like(first, dtype=x.dtype).copy_(x)

    return [first, *map(copied, inputs[1:])]


def _rows(inputs: Sequence[Tensor | None], elementwise: bool) -> list[Tensor | None]:
    """Return plain tensors, since the sizes of parameters would be compiled in, of few and long dimensions.

    Code for all sizes has a loop for each dimension, and that over the 3 x 3 numbers of a kernel is too short for a
    processor's vectors. So elementwise inputs are one row in the order of memory, (N,), and those of a convolution's
    weight, (O, I, h, w), are (O, I h w), where the number of an input channel is repeated h w times.
    """
    first = inputs[0]
    kernel = first.shape[1:] if first is not None and first.ndim == KERNEL else None
    strided = first is not None and not first.is_contiguous()  # what has its strides can't be an ``out=``, compiled

    def row(x: Tensor) -> Tensor:
        if elementwise:
            return x.as_strided((x.numel(),), (1,))
        if kernel is None:
            return x.contiguous() if strided else x
        return (x if x.shape[1:].numel() == 1 else x.expand(-1, *kernel)).flatten(1)

    return [x if x is None else row(x.detach()) if x.ndim else x.detach() for x in inputs]


def _parted(row: Tensor, x: Tensor, first: Tensor, elementwise: bool) -> Tensor:
    """Return the value, or the gradient of an input ``x`` as far as it is summed, from rows in the shape of ``x``."""
    if not row.ndim:
        return row
    if elementwise:
        return row.as_strided(x.shape, x.stride())
    if row.numel() == x.numel():
        return row.view(x.shape)
    if first.ndim == KERNEL:
        row = row.view(-1, *(first.shape[1:] if row.shape[1] > 1 else (1, 1, 1)))
    return row.sum_to_size(x.shape)


def _product_type(weight: Tensor) -> torch.dtype:
    """Return the type in which autocast has a weight multiplied, else its own."""
    kind = weight.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight.dtype


def _nothing(x: Tensor) -> Tensor:
    return x + 1
