"""SignRound (Cheng et al. 2024): Ŵ = s ⌊W / s + V⌉ with V and the range learned by signed descent."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from flexround.quant import native
from flexround.quant.formula import Formula, Gradients
from flexround.quant.grid import MIN_STEP, Grid, clip
from flexround.quant.rounding import Axes, Rounding

LARGEST = 0.5  # bound of |V|: a code moves by at most one


class SignRound(Rounding):
    """Intended for ``optimizer: sign`` with the learning rate 1 / iterations.

    Attributes:
        v: V, shape of the weight.
        ends: factors of the range's upper and lower end (α, β), (2, *shape of ``grid.step``); for signed codes only α,
            (1, ...). Each is between 0 and the factor that reaches the largest weight.
    """

    fusable = True
    largest: Tensor

    def __init__(self, weight: Tensor, grid: Grid, axes: Axes) -> None:
        super().__init__(weight, grid, axes)
        weight, shape = weight.detach(), grid.step.shape
        other = [dim for dim in range(weight.ndim) if not shape or shape[dim] == 1]
        low, high = weight.amin(other).view(shape), weight.amax(other).view(shape)
        if grid.qmin < 0:
            reaching = [torch.maximum(-low, high) * 2 / (grid.qmax - grid.qmin)]
        else:  # 0 / 0 for an end at 0, which can't be learned
            reaching = [high / (grid.qmax - grid.zero_point), low / (grid.qmin - grid.zero_point)]
        largest = torch.stack([step / grid.step for step in reaching]).nan_to_num(1, 1, 1).clamp_min(1)
        self.register_buffer("largest", largest, persistent=False)
        self.v = nn.Parameter(torch.zeros_like(weight))
        self.ends = nn.Parameter(torch.ones_like(largest))

    def forward(self, weight: Tensor) -> Tensor:
        """Return s ⌊W / s + V⌉, clipped to the grid, shape of ``weight``."""
        with torch.no_grad():  # signed descent oversteps the bounds, which the formula does not include
            self.v.clamp_(-LARGEST, LARGEST)
        step, zero_point = self._range()
        return AddRound.of(
            weight, self.v, step, self.grid.qmin - zero_point, self.grid.qmax - zero_point, compiled=self.fused
        )

    def _range(self) -> tuple[Tensor, Tensor]:
        """Return the learned step and zero point, shapes as in the grid, differentiable in ``ends``."""
        grid = self.grid
        with torch.no_grad():
            self.ends.clamp_min_(0).copy_(self.ends.minimum(self.largest))
        if grid.qmin < 0:
            return (grid.step * self.ends[0]).clamp_min(MIN_STEP), grid.zero_point
        upper, lower = self.ends[0] * (grid.qmax - grid.zero_point), self.ends[1] * (grid.qmin - grid.zero_point)
        step = (grid.step * ((upper - lower) / (grid.qmax - grid.qmin))).clamp_min(MIN_STEP)
        zero = grid.qmin - lower * grid.step / step
        return step, zero + (zero.round() - zero).detach()

    def step(self) -> Tensor:
        return self._range()[0].detach()

    def final_grid(self) -> Grid:
        """Return the learned grid; the two ends of an asymmetric grid also move its zero point."""
        step, zero_point = self._range()
        return Grid(step.detach(), zero_point.detach(), self.grid.qmin, self.grid.qmax)

    def groups(self) -> dict[str, list[nn.Parameter]]:
        """Return {"v": [V], "range": [α and β]}."""
        return {"v": [self.v], "range": [self.ends]}


class AddRound(Formula):
    """Ŵ = s · clamp(⌊W / s + V⌉).

    With u = W / s, the gradients inside the bounds [outside] are: ∂Ŵ/∂V = s [0], ∂Ŵ/∂s = ⌊u + V⌉ - u [bound],
    ∂Ŵ/∂bound = 0 [s for the clipping bound].
    """

    multiplied = True
    native = staticmethod(native.add_round)

    @staticmethod
    def value(
        needs: Sequence[bool], weight: Tensor, v: Tensor, step: Tensor, low: Tensor, high: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]:
        """Return Ŵ, shape of ``weight`` and ``v``; ``step`` and the bounds have shape () or are per channel."""
        u = weight / step
        rounded = (u + v).round_()
        code = clip(rounded, low, high)
        lower = (code == low).to(u.dtype) if needs[3] or needs[4] else None
        inside = (rounded == code).to(u.dtype)  # numbers, because masks are slow on CPUs
        return code * step, step, inside, torch.addcmul(code, u, inside, value=-1), lower

    @staticmethod
    def gradients(grad: Tensor, needs: object, shapes: Sequence[Any], *kept: Any) -> Gradients:
        """Return the gradients of v, step, low and high, each with its input's shape; the weight has none."""
        step, inside, slope, lower = kept
        _, _, of_step, of_bound, _ = shapes
        scaled, grad_low, grad_high = grad * step, None, None
        grad_v = scaled * inside
        if lower is not None:
            outside = scaled.sub_(grad_v)
            below = lower * outside
            grad_low, grad_high = below.sum_to_size(of_bound), outside.sub_(below).sum_to_size(of_bound)
        return None, grad_v, (grad * slope).sum_to_size(of_step), grad_low, grad_high
