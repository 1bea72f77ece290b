"""Uniform grids: integer range, step and zero point (paper, section 3.1; notation of section 3)."""

import dataclasses
from typing import Any

import torch
from torch import Tensor

Bound = Any  # number, or tensor shaped like the step: torch.clamp's overloads take either but not the union
MIN_STEP = 1e-8  # step of an all-zero tensor or channel, which then quantizes to exact zeros


@dataclasses.dataclass(frozen=True)
class Scheme:
    """The format that a tensor is quantized to.

    Attributes:
        bits: 2 to 8.
        symmetric: zero point 0; signed, or unsigned for a tensor without negatives (section 4.2). False: asymmetric.
        axis: channel axis of a per-channel grid, or None for one grid per tensor.
    """

    bits: int
    symmetric: bool = True
    axis: int | None = None


@dataclasses.dataclass(frozen=True)
class Grid:
    """Codes ``low <= c <= high``, which represent the values ``c * step``.

    The zero point is folded into the bounds: a stored unsigned code is ``c + zero_point``.

    Attributes:
        step: float, shape () or (C, 1, ...) with the channels on the scheme's axis; the paper's s1. A linear in
            groups has (Cout, groups, 1), and its weight and codes the shape that :func:`in_groups` returns.
        zero_point: float tensor of whole numbers, same shape as ``step``.
        qmin, qmax: range of the stored codes.
    """

    step: Tensor
    zero_point: Tensor
    qmin: int
    qmax: int

    @property
    def bounds(self) -> tuple[Bound, Bound]:
        """``(low, high)``: numbers for one grid per tensor (faster clamps), else tensors shaped like ``step``."""
        if self.zero_point.ndim == 0:
            zero_point = self.zero_point.item()
            return self.qmin - zero_point, self.qmax - zero_point
        return self.qmin - self.zero_point, self.qmax - self.zero_point


def in_groups(x: Tensor, step: Tensor) -> Tensor:
    """Return a linear's weight or codes (Cout, Cin) as (Cout, groups, size) if groups have steps, else unchanged."""
    return x.unflatten(1, (step.shape[1], -1)) if step.ndim > x.ndim else x


def code_range(scheme: Scheme, has_negatives: bool) -> tuple[int, int]:
    """Return ``(qmin, qmax)``: signed two's complement for a symmetric grid with negatives, else unsigned."""
    if scheme.symmetric and has_negatives:
        return -(2 ** (scheme.bits - 1)), 2 ** (scheme.bits - 1) - 1
    return 0, 2**scheme.bits - 1


def grid_from_range(low: Tensor, high: Tensor, scheme: Scheme, has_negatives: bool) -> Grid:
    """Build the grid that covers ``[min(low, 0), max(high, 0)]``.

    Symmetric signed: step = max|.| / ((2^b - 1) / 2); symmetric unsigned: step = high / (2^b - 1), zero point 0;
    asymmetric: step = (high - low) / (2^b - 1), zero point = clamp(-round(low / step), 0, 2^b - 1).

    Args:
        low, high: float, shape () or (C, 1, ...).
        scheme: bits and symmetry.
        has_negatives: whether the whole tensor has negatives, so that all channels are signed or all unsigned.
    """
    low, high = low.clamp_max(0), high.clamp_min(0)
    qmin, qmax = code_range(scheme, has_negatives)
    levels = 2**scheme.bits - 1
    if not scheme.symmetric:
        step = ((high - low) / levels).clamp_min(MIN_STEP)
        return Grid(step, (-torch.round(low / step)).clamp(0, levels), qmin, qmax)
    largest = torch.maximum(-low, high)
    step = (largest / (levels / 2) if has_negatives else largest / levels).clamp_min(MIN_STEP)
    return Grid(step, torch.zeros_like(step), qmin, qmax)


def channel_range(x: Tensor, axis: int | None) -> tuple[Tensor, Tensor]:
    """Return the minimum and maximum of a tensor, shape (), or of its channels, shape (1, .., C, .., 1)."""
    if axis is None:
        low, high = torch.aminmax(x)
        return low, high
    other = [dim for dim in range(x.ndim) if dim != axis % x.ndim]
    return x.amin(other, keepdim=True), x.amax(other, keepdim=True)


def nearest_codes(x: Tensor, grid: Grid) -> Tensor:
    """Return round-to-nearest's codes clamp(round(x / step), low, high): whole numbers as floats, shape of ``x``."""
    low, high = grid.bounds
    scaled = torch.div(x, grid.step).round_()
    return clip(scaled, low, high)


def clip(x: Tensor, low: Bound, high: Bound) -> Tensor:
    """Clip ``x``, any shape, to numbers or tensors; the gradient is 1 from ``low`` to ``high`` inclusive, else 0.

    Since PyTorch 2.15, ``torch.clamp`` has gradient 0 at the bounds; with tensors it is 8 times slower on a CPU.
    """
    if x.requires_grad and torch.is_grad_enabled():
        clipped = clip(x.detach(), low, high)
        return torch.where(x == clipped, x, clipped)
    if not isinstance(low, Tensor):
        return torch.clamp(x, low, high)
    return torch.minimum(torch.maximum(x, low), high)
