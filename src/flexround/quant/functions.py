"""The formulas of fake quantization with analytic gradients; ``native`` has one-pass kernels of them for a CPU.

All use the straight-through estimator: rounding has gradient 1, and clipping passes gradients only where the *rounded*
value is within the bounds. Tests compare each formula with a plain version in float64.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from flexround.quant import native
from flexround.quant.formula import Formula, Gradients
from flexround.quant.grid import Bound, clip

KERNEL = 4  # dimensions of a convolution's weight


class DivideRound(Formula):
    """Ŵ = s1 · clamp(⌊W / (s1 ⊙ S2 ⊙ s3 ⊙ s4)⌉), equation 2; AdaQuant is a special case.

    The learned parameters are d1 = ln(s1 / initial s1) and d = ln s of the other scales. Where all are 0, s1 and codes
    equal round-to-nearest's to the bit. With u = W / (s1 S2 s3 s4), the gradients inside the bounds [outside] are
    ∂Ŵ/∂d1 = s1 (⌊u⌉ - u) [s1 · bound], ∂Ŵ/∂d2 = -s1 u [0], ∂Ŵ/∂W = 1 / (S2 s3 s4) [0].
    ∂Ŵ/∂S' = ∂Ŵ/∂d2 / S' = -W / S'^2 is Proposition 3.1.
    """

    multiplied = True
    native = staticmethod(native.divide_round)

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
        """Return Ŵ; then Ŵ, ∂Ŵ/∂d2 and, if needed, ∂Ŵ/∂W; all with the weight's shape.

        ``start``, the initial s1, and ``d1`` have shape () or one number per channel; ``d2`` has the shape of
        ``weight``; ``d3`` and ``d4`` are broadcast.
        """
        divisor = s1 = start * d1.exp()
        for small in (d3, d4):  # small factors first
            divisor = divisor if small is None else divisor * small.exp()
        divisor = divisor if d2 is None else d2.exp().mul_(divisor)
        u = weight / divisor
        rounded = u.round()
        code = clip(rounded, low, high)
        inside = rounded == code
        quantized = code * s1
        slope = inside * s1 / divisor if needs[0] else None
        return quantized, quantized, u * inside * -s1, slope

    @staticmethod
    def gradients(
        grad: Tensor,
        needs: Sequence[bool],
        shapes: Sequence[torch.Size | None],
        quantized: Tensor,
        log_divisor: Tensor,
        slope: Tensor | None,
    ) -> Gradients:
        """Return the gradients of weight, start (none), d1, d2, d3 and d4, each with its input's shape."""
        _, _, shape1, shape2, shape3, shape4, *_ = shapes
        assert shape1 is not None
        grad_d = grad * log_divisor
        # sum over a convolution's kernel first, (O, I, h, w) -> (O, I, 1, 1), so that all other sums are short
        outer = grad_d.sum((2, 3), keepdim=True) if grad_d.ndim == KERNEL else grad_d
        rows = [None if shape is None else outer.sum_to_size(shape) for shape in (shape3, shape4)]
        grad_d1 = (grad * quantized).sum_to_size(shape1) + outer.sum_to_size(shape1) if needs[2] else None
        grad_w = None if slope is None else grad * slope
        return grad_w, None, grad_d1, None if shape2 is None else grad_d, *rows


class RectifiedSigmoidRound(Formula):
    """AdaRound: Ŵ = s1 · clamp(⌊W / s1⌋ + h(α)), h(α) = clamp(1.2 σ(α) - 0.1, 0, 1) (Nagel et al. 2020, eq. 22-23).

    ∂Ŵ/∂α = s1 h'(α) within the bounds; 0 outside them and where h is saturated.
    """

    multiplied = True
    native = staticmethod(native.sigmoid_round)

    @staticmethod
    def value(
        needs: Sequence[bool], alpha: Tensor, floor: Tensor, step: Tensor, low: Bound, high: Bound
    ) -> tuple[Tensor, Tensor]:
        """Return Ŵ and ∂Ŵ/∂α, shape of ``alpha`` and ``floor`` (whole numbers); ``step`` is () or per channel."""
        sigmoid = alpha.sigmoid()
        h = stretch(sigmoid)
        code = h.add(floor)
        clipped = clip(code, low, high)
        slope = stretch_slope(sigmoid, h) * (code == clipped) * step
        return clipped.mul_(step), slope

    @staticmethod
    def gradients(grad: Tensor, needs: object, shapes: object, slope: Tensor) -> Gradients:
        """Return the gradient of ``alpha``, shape of ``alpha``."""
        return (grad * slope,)


class RoundingRegularizer(Formula):
    """AdaRound's Σ (1 - |2 h(α) - 1|^β), summed over all weights (Nagel et al. 2020, eq. 24)."""

    native = staticmethod(native.rounding_regularizer)

    @staticmethod
    def value(needs: Sequence[bool], alpha: Tensor, beta: float | Tensor) -> tuple[Tensor, Tensor]:
        """Return the sum, shape (), and its gradient, shape of ``alpha``."""
        sigmoid = alpha.sigmoid()
        h = stretch(sigmoid)
        centred = h.mul(2).sub_(1)
        power = centred.abs().pow_(beta - 1)
        total = alpha.numel() - power.mul(centred.abs()).sum()
        return total, power.mul_(centred.sign_()).mul_(stretch_slope(sigmoid, h)).mul_(-2 * beta)

    @staticmethod
    def gradients(grad: Tensor, needs: object, shapes: object, slope: Tensor) -> Gradients:
        """Return the gradient of ``alpha``, shape of ``alpha``."""
        return (grad * slope,)


GAMMA, ZETA = -0.1, 1.1  # stretch of AdaRound's rectified sigmoid


def stretch(sigmoid: Tensor) -> Tensor:
    """Return h = clamp((ζ - γ) σ + γ, 0, 1), any shape."""
    return sigmoid.mul(ZETA - GAMMA).add_(GAMMA).clamp_(0, 1)


def stretch_slope(sigmoid: Tensor, h: Tensor) -> Tensor:
    """Return h'(α) = (ζ - γ) σ (1 - σ), 0 where h is saturated at 0 or 1; all tensors share one shape."""
    return torch.addcmul(sigmoid, sigmoid, sigmoid, value=-1) * (ZETA - GAMMA) * (h != h.round())


class StepQuantize(Formula):
    """x̂ = Δ · clamp(⌊x / Δ⌉), where the mask is 1, and x where it is 0 (LSQ step; QDrop's random dropping).

    With u = x / Δ: ∂x̂/∂x = 1 inside the bounds or where dropped, else 0; ∂x̂/∂Δ = ⌊u⌉ - u inside, the bound outside,
    0 where dropped (Esser et al. 2020, eq. 3, without their gradient scale).
    """

    native = staticmethod(native.step_quantize)

    @staticmethod
    def value(
        needs: Sequence[bool], x: Tensor, step: Tensor, low: Bound, high: Bound, kept: Any
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return x̂, ∂x̂/∂Δ inside the bounds, and u: shape of ``x``, float32 for half precision.

        ``step`` has shape (); ``kept`` is a mask with the shape of ``x``, a ``Kept``, or None to keep everything.
        """
        x = x if x.itemsize >= SINGLE else x.float()
        mask = None if kept is None else kept if isinstance(kept, Tensor) else kept.mask(x, torch.bool)
        u = (x if mask is None else x.where(mask, 0)) / step  # 0 is inside, so its gradient passes
        code = clip(u.round(), low, high)
        slope, quantized = code - u, code * step
        quantized = quantized if mask is None else quantized.where(mask, x)
        return quantized, slope, u

    @staticmethod
    def gradients(grad: Tensor, needs: Sequence[bool], shapes: object, slope: Tensor, u: Tensor) -> Gradients:
        """Return the gradients of ``x``, shape of ``x``, and of ``step``, shape ()."""
        # |code - u| <= 1/2 exactly where nothing was clipped: one pass instead of a mask
        grad_x = torch.ops.aten.hardtanh_backward(grad, slope, -HALF, HALF)
        grad_step = (grad * slope + (grad - grad_x) * u).sum() if needs[1] else None
        return grad_x if needs[0] else None, grad_step


HALF = 0.5 + 1e-6  # hardtanh's bounds are exclusive, and ties are inside
SINGLE = 4  # bytes
