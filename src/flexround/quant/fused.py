"""The formulas of fake quantization compiled: one pass over memory forward, one backward, instead of one an operation.

Nothing of the weight's size is kept between the two: the backward computes the forward again. Under autocast Ŵ is
written in the type of the matrix products and its gradient read so, which spares the casts.
"""

import functools
import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from flexround.quant.functions import (
    Logs,
    divide_round,
    divide_round_gradients,
    inside,
    rectified_sigmoid_round,
    rounding_regularizer,
    shapes,
    step_quantize,
)

KINDS = 128  # of one formula: ranks, sizes of one, short and long sums, types, with a mask and without

log = logging.getLogger(__name__)


class FusedDivideRound(Function):
    """``DivideRound`` compiled; the bounds are tensors, since numbers would be compiled in."""

    @staticmethod
    def forward(
        ctx: Any,
        weight: Tensor,
        d1: Tensor,
        d2: Tensor | None,
        d3: Tensor | None,
        d4: Tensor | None,
        low: Tensor,
        high: Tensor,
    ) -> Tensor:
        """Return Ŵ, shapes as in ``DivideRound``; of autocast's type if that is on."""
        ctx.save_for_backward(weight, d1, d2, d3, d4, low, high)
        return _compiled(_divide_round)(*_plain(weight, d1, d2, d3, d4, low, high), _product_type(weight))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of weight, d1, d2, d3, d4, each of its own shape."""
        inputs = _plain(*ctx.saved_tensors)
        return *_compiled(_divide_round_gradients)(grad, *inputs, *ctx.needs_input_grad[:2]), None, None


class FusedRectifiedSigmoidRound(Function):
    """``RectifiedSigmoidRound`` compiled; the bounds are tensors."""

    @staticmethod
    def forward(ctx: Any, alpha: Tensor, floor: Tensor, step: Tensor, low: Tensor, high: Tensor) -> Tensor:
        """Return Ŵ, shapes as in ``RectifiedSigmoidRound``; of autocast's type if that is on."""
        ctx.save_for_backward(alpha, floor, step, low, high)
        return _compiled(_rectified_sigmoid_round)(*_plain(alpha, floor, step, low, high), _product_type(alpha))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient of alpha, of its shape."""
        inputs = _plain(*ctx.saved_tensors)
        return _compiled(_rectified_sigmoid_round_gradient)(grad, *inputs), None, None, None, None


class FusedRoundingRegularizer(Function):
    """``RoundingRegularizer`` compiled."""

    @staticmethod
    def forward(ctx: Any, alpha: Tensor, beta: Tensor) -> Tensor:
        """Return the scalar sum over ``alpha``, any shape; ``beta`` has shape ()."""
        ctx.save_for_backward(alpha, beta)
        return _compiled(_rounding_regularizer)(*_plain(alpha, beta))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient of alpha, of its shape."""
        return _compiled(_rounding_regularizer_gradient)(grad, *_plain(*ctx.saved_tensors)), None


class FusedStepQuantize(Function):
    """``StepQuantize`` compiled; the bounds are tensors, and the input may be half precision."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, step: Tensor, low: Tensor, high: Tensor, kept: Tensor | None) -> Tensor:
        """Return x̂ in float32, shapes as in ``StepQuantize``."""
        ctx.save_for_backward(x, step, low, high, kept)
        return _compiled(_step_quantize)(*_plain(x, step, low, high, kept))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of x, of its shape and type, and step, shape ()."""
        inputs = _plain(*ctx.saved_tensors)
        return *_compiled(_step_quantize_gradients)(grad, *inputs, *ctx.needs_input_grad[:2]), None, None, None


@functools.cache
def compiler_works(device: torch.device) -> bool:
    """Say whether code can be compiled for a device, by compiling something; if not, log why in one line."""
    try:
        _compiled(_nothing)(torch.zeros(2, device=device))
    except RuntimeError as error:
        reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        log.warning("fused: nothing can be compiled for %s (%s); the operations run one by one", device, reason)
        return False
    return True


@functools.cache
def _compiled(formula: Callable[..., Any]) -> Callable[..., Any]:
    """Compile once for all sizes: the blocks of a network have few shapes but each would be compiled anew.

    Ranks, sizes of one, sums short and long and types are compiled apart all the same: torch's limit of eight is too
    low for the activations of a MobileNetV2, and a formula beyond it fails.
    """
    limit: dict[str, Any] = {"recompile_limit": KINDS}  # torch's own types do not know it yet
    return torch.compile(formula, fullgraph=True, dynamic=True, **limit)


def _plain(*tensors: Tensor | None) -> list[Tensor | None]:
    """Return the same values as plain tensors: the sizes of parameters would be compiled in."""
    return [None if tensor is None else tensor.detach() for tensor in tensors]


def _product_type(weight: Tensor) -> torch.dtype:
    """Return the type in which autocast has a weight multiplied, else its own."""
    kind = weight.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight.dtype


# What is compiled. Of each formula only what is returned is computed.


def _divide_round(
    weight: Tensor,
    d1: Tensor,
    d2: Tensor | None,
    d3: Tensor | None,
    d4: Tensor | None,
    low: Tensor,
    high: Tensor,
    kind: torch.dtype,
) -> Tensor:
    return divide_round(weight, (d1, d2, d3, d4), low, high, False)[0].to(kind)


def _divide_round_gradients(
    grad: Tensor,
    weight: Tensor,
    d1: Tensor,
    d2: Tensor | None,
    d3: Tensor | None,
    d4: Tensor | None,
    low: Tensor,
    high: Tensor,
    learn_weight: bool,
    learn_s1: bool,
) -> tuple[Tensor | None, ...]:
    logs: Logs = (d1, d2, d3, d4)
    parts = divide_round(weight, logs, low, high, learn_weight)
    return divide_round_gradients(grad, *parts, shapes(logs), learn_s1, one_sum=True)


def _rectified_sigmoid_round(
    alpha: Tensor, floor: Tensor, step: Tensor, low: Tensor, high: Tensor, kind: torch.dtype
) -> Tensor:
    return rectified_sigmoid_round(alpha, floor, step, low, high)[0].to(kind)


def _rectified_sigmoid_round_gradient(
    grad: Tensor, alpha: Tensor, floor: Tensor, step: Tensor, low: Tensor, high: Tensor
) -> Tensor:
    return grad * rectified_sigmoid_round(alpha, floor, step, low, high)[1]


def _rounding_regularizer(alpha: Tensor, beta: Tensor) -> Tensor:
    return rounding_regularizer(alpha, beta)[0]


def _rounding_regularizer_gradient(grad: Tensor, alpha: Tensor, beta: Tensor) -> Tensor:
    return grad * rounding_regularizer(alpha, beta)[1]


def _step_quantize(x: Tensor, step: Tensor, low: Tensor, high: Tensor, kept: Tensor | None) -> Tensor:
    return step_quantize(x.float(), step, low, high, kept)[0]


def _step_quantize_gradients(
    grad: Tensor,
    x: Tensor,
    step: Tensor,
    low: Tensor,
    high: Tensor,
    kept: Tensor | None,
    learn_x: bool,
    learn_step: bool,
) -> tuple[Tensor | None, Tensor | None]:
    _, slope, u = step_quantize(x.float(), step, low, high, kept)
    grad_x = inside(grad, slope)
    grad_step = (grad * slope + (grad - grad_x) * u).sum() if learn_step else None
    return grad_x.to(x.dtype) if learn_x else None, grad_step


def _nothing(x: Tensor) -> Tensor:
    return x + 1
