"""Fake quantization with analytic gradients: one autograd function per formula, few passes over memory.

All use the straight-through estimator: rounding has gradient 1, clipping passes it only where the *rounded* value lies
within the bounds. Tests compare each with its plain formula in float64.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from flexround.quant.grid import Bound, clip


class DivideRound(Function):
    """Ŵ = s1 · clamp(⌊W / (s1 ⊙ S2 ⊙ s3 ⊙ s4)⌉) with d = ln s (equation 2; RTN and AdaQuant are special cases).

    With u = W / (s1 S2 s3 s4) the gradients are, inside the bounds (outside in brackets):
    ∂Ŵ/∂d1 = s1 (⌊u⌉ - u) [s1 · bound], ∂Ŵ/∂d2 = -s1 u [0], ∂Ŵ/∂W = 1 / (S2 s3 s4) [0].
    ∂Ŵ/∂S' = ∂Ŵ/∂d2 / S' = -W / S'^2 is Proposition 3.1.
    """

    @staticmethod
    def forward(
        ctx: Any,
        weight: Tensor,
        d1: Tensor,
        d2: Tensor | None,
        d3: Tensor | None,
        d4: Tensor | None,
        low: Bound,
        high: Bound,
    ) -> Tensor:
        """Return Ŵ, shape of ``weight``; ``d1`` () or per channel, ``d2`` like ``weight``, ``d3``/``d4`` broadcast."""
        logs = (d1, d2, d3, d4)
        quantized, log_divisor, slope = divide_round(weight, logs, low, high, ctx.needs_input_grad[0])
        ctx.save_for_backward(quantized, log_divisor, slope)
        ctx.shapes = shapes(logs)
        return quantized

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of weight, d1, d2, d3, d4, each of its own shape."""
        quantized, log_divisor, slope = ctx.saved_tensors
        learn_s1 = ctx.needs_input_grad[1]
        return *divide_round_gradients(grad, quantized, log_divisor, slope, ctx.shapes, learn_s1), None, None


Logs = tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]  # d1, d2, d3, d4
Shapes = Sequence[torch.Size | None]  # of the same


def divide_round(
    weight: Tensor, logs: Logs, low: Bound, high: Bound, learn_weight: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return Ŵ of :class:`DivideRound`, ∂Ŵ/∂d2 and, with ``learn_weight``, ∂Ŵ/∂W; all of the weight's shape."""
    d1, d2, d3, d4 = logs
    s1 = d1.exp()
    scale = -d1
    for small in (d3, d4):
        if small is not None:
            scale = scale - small
    # scale becomes 1 / (s1 S2 s3 s4); the parts without S2 are combined first because they are small
    scale = scale.exp() if d2 is None else torch.sub(scale, d2).exp_()
    u = weight * scale
    rounded = u.round()
    code = clip(rounded, low, high)
    inside = torch.eq(rounded, code, out=rounded)
    quantized = code.mul_(s1)
    slope = scale.mul(inside).mul_(s1) if learn_weight else None
    return quantized, u.mul_(inside).mul_(-s1), slope


def divide_round_gradients(
    grad: Tensor,
    quantized: Tensor,
    log_divisor: Tensor,
    slope: Tensor | None,
    shapes: Shapes,
    learn_s1: bool,
    one_sum: bool = False,
) -> tuple[Tensor | None, ...]:
    """Return the gradients of weight, d1, d2, d3, d4, each of its own shape, from what ``divide_round`` returned.

    With ``one_sum`` that of d1 is one sum over the weight: compiled, two sums are two passes over memory, while run
    one by one the second is a small one.
    """
    grad_d = grad * log_divisor
    grad_weight = None if slope is None else grad * slope
    shape1, shape2, shape3, shape4 = shapes
    assert shape1 is not None
    outer = _sum_channels(grad_d)
    grad_d1 = None
    if learn_s1 and one_sum:
        grad_d1 = _sum_to(grad_d + grad * quantized, shape1)
    elif learn_s1:
        grad_d1 = _sum_to(grad * quantized, shape1) + _sum_small(outer, shape1)
    return (
        grad_weight,
        grad_d1,
        None if shape2 is None else grad_d,
        None if shape3 is None else _sum_small(outer, shape3),
        None if shape4 is None else _sum_small(outer, shape4),
    )


def shapes(logs: Logs) -> list[torch.Size | None]:
    """Return the shapes of d1 to d4, None for those that are absent."""
    return [None if d is None else d.shape for d in logs]


def _sum_channels(x: Tensor) -> Tensor:
    """Sum a convolution weight's kernel, (O, I, h, w) -> (O, I, 1, 1): all other sums are then over few numbers."""
    return x.sum((2, 3), keepdim=True) if x.ndim == 4 else x


def _sum_small(x: Tensor, shape: torch.Size) -> Tensor:
    """Sum ``x`` down to the broadcast ``shape``."""
    return x.sum_to_size(shape)


def _sum_to(x: Tensor, shape: torch.Size) -> Tensor:
    """Sum a full-size product down to ``shape``."""
    return x.sum() if len(shape) == 0 else x.sum_to_size(shape)


class RectifiedSigmoidRound(Function):
    """AdaRound: Ŵ = s1 · clamp(⌊W / s1⌋ + h(α)), h(α) = clamp(1.2 σ(α) - 0.1, 0, 1) (Nagel et al. 2020, eq. 22-23).

    ∂Ŵ/∂α = s1 h'(α) within the bounds, 0 outside and where h is saturated.
    """

    @staticmethod
    def forward(ctx: Any, alpha: Tensor, floor: Tensor, step: Tensor, low: Bound, high: Bound) -> Tensor:
        """Return Ŵ; ``alpha`` and ``floor`` (whole numbers) have its shape, ``step`` is () or per channel."""
        quantized, slope = rectified_sigmoid_round(alpha, floor, step, low, high)
        ctx.save_for_backward(slope)
        return quantized

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient of alpha, of its shape."""
        (slope,) = ctx.saved_tensors
        return grad * slope, None, None, None, None


def rectified_sigmoid_round(
    alpha: Tensor, floor: Tensor, step: Tensor, low: Bound, high: Bound
) -> tuple[Tensor, Tensor]:
    """Return Ŵ of :class:`RectifiedSigmoidRound` and ∂Ŵ/∂α, both of the shape of ``alpha``."""
    sigmoid = alpha.sigmoid()
    h = stretch(sigmoid)
    code = h.add(floor)
    clipped = clip(code, low, high)
    slope = stretch_slope(sigmoid, h).mul_(torch.eq(code, clipped, out=code)).mul_(step)
    return clipped.mul_(step), slope


class RoundingRegularizer(Function):
    """AdaRound's Σ (1 - |2 h(α) - 1|^β), summed over all weights (Nagel et al. 2020, eq. 24)."""

    @staticmethod
    def forward(ctx: Any, alpha: Tensor, beta: float) -> Tensor:
        """Return the scalar sum over ``alpha``, any shape."""
        total, slope = rounding_regularizer(alpha, beta)
        ctx.save_for_backward(slope)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient of alpha, of its shape."""
        (slope,) = ctx.saved_tensors
        return grad * slope, None


def rounding_regularizer(alpha: Tensor, beta: float | Tensor) -> tuple[Tensor, Tensor]:
    """Return the sum of :class:`RoundingRegularizer`, shape (), and its gradient, of the shape of ``alpha``."""
    sigmoid = alpha.sigmoid()
    h = stretch(sigmoid)
    centred = h.mul(2).sub_(1)
    power = centred.abs().pow_(beta - 1)
    total = alpha.numel() - power.mul(centred.abs()).sum()
    return total, power.mul_(centred.sign_()).mul_(stretch_slope(sigmoid, h)).mul_(-2 * beta)


GAMMA, ZETA = -0.1, 1.1  # stretch of AdaRound's rectified sigmoid


def stretch(sigmoid: Tensor) -> Tensor:
    """Return h = clamp((ζ - γ) σ + γ, 0, 1), any shape."""
    return sigmoid.mul(ZETA - GAMMA).add_(GAMMA).clamp_(0, 1)


def stretch_slope(sigmoid: Tensor, h: Tensor) -> Tensor:
    """Return h'(α) = (ζ - γ) σ (1 - σ), 0 where h is saturated at 0 or 1; any shape, the same for all."""
    open_interval = torch.ne(h, h.round(), out=torch.empty_like(h))
    return torch.addcmul(sigmoid, sigmoid, sigmoid, value=-1).mul_(ZETA - GAMMA).mul_(open_interval)


class StepQuantize(Function):
    """x̂ = Δ · clamp(⌊x / Δ⌉), kept with mask 1 and replaced by x with mask 0 (LSQ step; QDrop's random dropping).

    ∂x̂/∂x = 1 inside the bounds or where dropped, else 0. ∂x̂/∂Δ = ⌊u⌉ - u inside, the bound outside, 0 where dropped,
    with u = x / Δ (Esser et al. 2020, eq. 3, without their gradient scale).
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, step: Tensor, low: Bound, high: Bound, kept: Tensor | None) -> Tensor:
        """Return x̂, shape of ``x``; ``kept`` is a float mask of 0 and 1 or None to keep everything."""
        quantized, slope, u = step_quantize(x, step, low, high, kept)
        ctx.save_for_backward(slope, u)
        return quantized

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of x, any shape, and step, shape ()."""
        slope, u = ctx.saved_tensors
        if grad.stride() != u.stride():
            grad = torch.empty_like(u).copy_(grad)
        grad_x = inside(grad, slope)
        grad_step = _dot(grad, slope) + _dot(grad - grad_x, u) if ctx.needs_input_grad[1] else None
        return grad_x if ctx.needs_input_grad[0] else None, grad_step, None, None, None


def step_quantize(
    x: Tensor, step: Tensor, low: Bound, high: Bound, kept: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return x̂ of :class:`StepQuantize`, ∂x̂/∂Δ inside the bounds and u = x / Δ, each of the shape of ``x``."""
    u = x / step
    code = u.round()
    clip(code, low, high, out=code)
    if kept is None:
        slope = code - u
        return code.mul_(step), slope, u
    slope = code.sub_(u).mul_(kept)
    return torch.addcmul(x, slope, step), slope, u


def inside(grad: Tensor, slope: Tensor) -> Tensor:
    """Return ``grad`` where nothing was clipped, else 0; ``slope``, its shape, is that of ``step_quantize``."""
    # |code - u| <= 1/2 exactly where nothing was clipped: one pass instead of a mask, which CPUs are slow with
    return torch.ops.aten.hardtanh_backward(grad, slope, -HALF, HALF)


HALF = 0.5 + 1e-6  # hardtanh's bounds are exclusive, and ties are inside


def _dot(a: Tensor, b: Tensor) -> Tensor:
    """Return Σ a b of two dense tensors of equal layout."""
    return torch.dot(a.as_strided((a.numel(),), (1,)), b.as_strided((b.numel(),), (1,)))
