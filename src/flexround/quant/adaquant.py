"""AdaQuant (Hubara et al. 2021): Ŵ = s1 ⌊(W + V) / s1⌉, V and s1 learned (paper, section 3.1)."""

import torch
from torch import Tensor, nn

from flexround.quant.flexround import FlexRound
from flexround.quant.functions import DivideRound
from flexround.quant.grid import Grid
from flexround.quant.rounding import Axes, Rounding


class AdaQuant(Rounding):
    """Element-wise addition; the groups ``v`` and ``s1`` have separate learning rates."""

    fusable = True

    def __init__(self, weight: Tensor, grid: Grid, axes: Axes) -> None:
        super().__init__(weight, grid, axes)
        self.v = nn.Parameter(torch.zeros_like(weight))
        self.d1 = nn.Parameter(torch.zeros_like(grid.step))

    def forward(self, weight: Tensor) -> Tensor:
        """Return s1 ⌊(W + V) / s1⌉, clipped to the grid, shape of ``weight``."""
        scales = self.grid.step, self.d1, None, None, None
        return DivideRound.of(weight + self.v, *scales, self.low, self.high, compiled=self.fused)

    def step(self) -> Tensor:
        return self.grid.step * self.d1.detach().exp()

    def groups(self) -> dict[str, list[nn.Parameter]]:
        """Return {"v": [V], "s1": [ln (s1 / initial s1)]}."""
        return {"v": [self.v], "s1": [self.d1]}


class AdaQuantFlexRound(FlexRound):
    """AdaQuant + FlexRound (paper, appendix F): Ŵ = s1 ⌊(W + V) / (s1 ⊙ S2 ⊙ s3 ⊙ s4)⌉."""

    def __init__(self, weight: Tensor, grid: Grid, axes: Axes, **options: bool | str) -> None:
        super().__init__(weight, grid, axes, **options)  # type: ignore[arg-type]
        self.v = nn.Parameter(torch.zeros_like(weight))

    def forward(self, weight: Tensor) -> Tensor:
        """Return s1 ⌊(W + V) / (s1 ⊙ S2 ⊙ s3 ⊙ s4)⌉, clipped to the grid, shape of ``weight``."""
        return super().forward(weight + self.v)

    def groups(self) -> dict[str, list[nn.Parameter]]:
        """Return {"v": [V], "scales": FlexRound's}."""
        scales = [parameter for parameter in super().groups()["all"] if parameter is not self.v]
        return {"v": [self.v], "scales": scales}
