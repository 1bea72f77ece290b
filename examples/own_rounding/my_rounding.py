"""A rounding of one's own: each weight is moved by up to a step before it is rounded."""

import torch
from torch import Tensor, nn

from flexround.quant.grid import Grid, clip
from flexround.quant.rounding import Axes, Rounding


class Nudge(Rounding):
    """Ŵ = s1 ⌊W / s1 + tanh(v)⌉, clipped to the grid; v starts at 0, which is round-to-nearest."""

    def __init__(self, weight: Tensor, grid: Grid, axes: Axes) -> None:
        super().__init__(weight, grid, axes)
        self.v = nn.Parameter(torch.zeros_like(weight))

    def forward(self, weight: Tensor) -> Tensor:
        """Return Ŵ; the rounding passes gradients on as if it weren't there."""
        u = weight / self.grid.step + self.v.tanh()
        codes = u + (u.round() - u).detach()
        return clip(codes, self.low, self.high) * self.grid.step
