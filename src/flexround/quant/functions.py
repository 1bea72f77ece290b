"""The formulas of fake quantization with analytic gradients, few passes over memory each.

All use the straight-through estimator: rounding has gradient 1, clipping passes it only where the *rounded* value lies
within the bounds. Tests compare each with its plain formula in float64.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from flexround.quant.formula import KERNEL, Formula, Gradients
from flexround.quant.grid import Bound, clip


class DivideRound(Formula):
    """Ŵ = s1 · clamp(⌊W / (s1 ⊙ S2 ⊙ s3 ⊙ s4)⌉), equation 2, of which AdaQuant is a special case.

    What is learned is d1 = ln(s1 / initial s1) and d = ln s of the others: where all are 0, s1 and the codes are those
    of round-to-nearest to the bit. With u = W / (s1 S2 s3 s4) the gradients inside the bounds (outside in brackets) are
    ∂Ŵ/∂d1 = s1 (⌊u⌉ - u) [s1 · bound], ∂Ŵ/∂d2 = -s1 u [0], ∂Ŵ/∂W = 1 / (S2 s3 s4) [0].
    ∂Ŵ/∂S' = ∂Ŵ/∂d2 / S' = -W / S'^2 is Proposition 3.1.
    """

    multiplied = True

    @staticmethod
    def value(
        needs: Sequence[bool],
        weight: Tensor,
        start: Tensor,
        d1: Tensor,
        d2: Tensor | None,
        d3: Tensor | None,
        d4: Tensor | None,
        low: Bound,
        high: Bound,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Return Ŵ; then Ŵ, ∂Ŵ/∂d2 and, if it is needed, ∂Ŵ/∂W; all of the weight's shape.

        ``start``, the initial s1, and ``d1`` have the shape () or one number per channel, ``d2`` that of ``weight``;
        ``d3`` and ``d4`` are broadcast.
        """
        s1 = start * d1.exp()
        divisor = s1
        for small in (d3, d4):  # the parts without S2 are combined first because they are small
            if small is not None:
                divisor = divisor * small.exp()
        if d2 is not None:
            divisor = d2.exp().mul_(divisor)
        u = weight / divisor
        rounded = u.round()
        code = clip(rounded, low, high)
        inside = torch.eq(rounded, code, out=rounded)
        quantized = code.mul_(s1)
        slope = inside * s1 / divisor if needs[0] else None
        return quantized, quantized, u.mul_(inside).mul_(-s1), slope

    @staticmethod
    def gradients(
        grad: Tensor,
        needs: Sequence[bool],
        shapes: Sequence[torch.Size | None],
        compiled: bool,
        quantized: Tensor,
        log_divisor: Tensor,
        slope: Tensor | None,
    ) -> Gradients:
        """Return the gradients of weight, start (none), d1, d2, d3 and d4, each of its own shape."""
        _, _, shape1, shape2, shape3, shape4, *_ = shapes
        assert shape1 is not None
        grad_d = grad * log_divisor
        if compiled:  # of all sums along the last dimension the compiler makes one pass; what is left to sum is small
            rows = [_along_rows(grad_d, shape) for shape in (shape3, shape4)]
            grad_d1 = _along_rows(grad_d + grad * quantized, shape1) if needs[2] else None
        else:
            # a convolution's kernel, (O, I, h, w) -> (O, I, 1, 1): all other sums are then over few numbers
            outer = grad_d.sum((2, 3), keepdim=True) if grad_d.ndim == KERNEL else grad_d
            rows = [None if shape is None else outer.sum_to_size(shape) for shape in (shape3, shape4)]
            grad_d1 = (grad * quantized).sum_to_size(shape1) + outer.sum_to_size(shape1) if needs[2] else None
        grad_w = None if slope is None else grad * slope
        return grad_w, None, grad_d1, None if shape2 is None else grad_d, *rows


class RectifiedSigmoidRound(Formula):
    """AdaRound: Ŵ = s1 · clamp(⌊W / s1⌋ + h(α)), h(α) = clamp(1.2 σ(α) - 0.1, 0, 1) (Nagel et al. 2020, eq. 22-23).

    ∂Ŵ/∂α = s1 h'(α) within the bounds, 0 outside and where h is saturated.
    """

    multiplied = True

    @staticmethod
    def value(
        needs: Sequence[bool], alpha: Tensor, floor: Tensor, step: Tensor, low: Bound, high: Bound
    ) -> tuple[Tensor, Tensor]:
        """Return Ŵ and ∂Ŵ/∂α, shape of ``alpha`` and ``floor`` (whole numbers); ``step`` is () or per channel."""
        sigmoid = alpha.sigmoid()
        h = stretch(sigmoid)
        code = h.add(floor)
        clipped = clip(code, low, high)
        slope = stretch_slope(sigmoid, h).mul_(torch.eq(code, clipped, out=code)).mul_(step)
        return clipped.mul_(step), slope

    @staticmethod
    def gradients(grad: Tensor, needs: object, shapes: object, compiled: bool, slope: Tensor) -> Gradients:
        """Return the gradient of alpha, of its shape."""
        return (grad * slope,)


class RoundingRegularizer(Formula):
    """AdaRound's Σ (1 - |2 h(α) - 1|^β), summed over all weights (Nagel et al. 2020, eq. 24)."""

    elementwise = True

    @staticmethod
    def value(needs: Sequence[bool], alpha: Tensor, beta: float | Tensor) -> tuple[Tensor, Tensor]:
        """Return the sum, shape (), and its gradient, of the shape of ``alpha``."""
        sigmoid = alpha.sigmoid()
        h = stretch(sigmoid)
        centred = h.mul(2).sub_(1)
        power = centred.abs().pow_(beta - 1)
        total = alpha.numel() - power.mul(centred.abs()).sum()
        return total, power.mul_(centred.sign_()).mul_(stretch_slope(sigmoid, h)).mul_(-2 * beta)

    @staticmethod
    def gradients(grad: Tensor, needs: object, shapes: object, compiled: bool, slope: Tensor) -> Gradients:
        """Return the gradient of alpha, of its shape."""
        return (grad * slope,)


GAMMA, ZETA = -0.1, 1.1  # stretch of AdaRound's rectified sigmoid


def stretch(sigmoid: Tensor) -> Tensor:
    """Return h = clamp((ζ - γ) σ + γ, 0, 1), any shape."""
    return sigmoid.mul(ZETA - GAMMA).add_(GAMMA).clamp_(0, 1)


def stretch_slope(sigmoid: Tensor, h: Tensor) -> Tensor:
    """Return h'(α) = (ζ - γ) σ (1 - σ), 0 where h is saturated at 0 or 1; any shape, the same for all."""
    open_interval = torch.ne(h, h.round(), out=torch.empty_like(h))
    return torch.addcmul(sigmoid, sigmoid, sigmoid, value=-1).mul_(ZETA - GAMMA).mul_(open_interval)


class StepQuantize(Formula):
    """x̂ = Δ · clamp(⌊x / Δ⌉), kept with mask 1 and replaced by x with mask 0 (LSQ step; QDrop's random dropping).

    ∂x̂/∂x = 1 inside the bounds or where dropped, else 0. ∂x̂/∂Δ = ⌊u⌉ - u inside, the bound outside, 0 where dropped,
    with u = x / Δ (Esser et al. 2020, eq. 3, without their gradient scale).
    """

    elementwise = True

    @staticmethod
    def value(
        needs: Sequence[bool], x: Tensor, step: Tensor, low: Bound, high: Bound, kept: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return x̂, ∂x̂/∂Δ inside the bounds and u, shape of ``x``, float32 if it is half precision.

        ``step`` has the shape (); ``kept`` is a mask of the shape of ``x``, or None to keep everything.
        """
        u = (x if x.itemsize >= SINGLE else x.float()) / step
        code = u.round()
        clip(code, low, high, out=code)
        if kept is None:
            slope = code - u
            return code.mul_(step), slope, u
        slope = code.sub_(u).mul_(kept)
        return torch.addcmul(x, slope, step), slope, u

    @staticmethod
    def gradients(
        grad: Tensor, needs: Sequence[bool], shapes: object, compiled: bool, slope: Tensor, u: Tensor
    ) -> Gradients:
        """Return the gradients of x, of its shape, and of step, shape ()."""
        if not compiled and grad.stride() != u.stride():
            grad = torch.empty_like(u).copy_(grad)
        # |code - u| <= 1/2 exactly where nothing was clipped: one pass instead of a mask, which CPUs are slow with
        grad_x = torch.ops.aten.hardtanh_backward(grad, slope, -HALF, HALF)
        grad_step = None
        if needs[1] and compiled:
            grad_step = (grad * slope + (grad - grad_x) * u).sum()
        elif needs[1]:
            grad_step = _dot(grad, slope) + _dot(grad - grad_x, u)
        return grad_x if needs[0] else None, grad_step


def _along_rows(x: Tensor, shape: torch.Size | None) -> Tensor | None:
    """Return ``x`` summed along its last dimension, if that is one number in ``shape``, else to all of ``shape``."""
    if shape is None:
        return None
    return x.sum(-1, keepdim=True) if not shape or shape[-1] == 1 else x.sum_to_size(shape)


HALF = 0.5 + 1e-6  # hardtanh's bounds are exclusive, and ties are inside
SINGLE = 4  # bytes


def _dot(a: Tensor, b: Tensor) -> Tensor:
    """Return Σ a b of two dense tensors of equal layout."""
    return torch.dot(a.as_strided((a.numel(),), (1,)), b.as_strided((b.numel(),), (1,)))
