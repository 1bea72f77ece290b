"""AdaRound (Nagel et al. 2020): learn whether each weight goes up or down, step fixed."""

import torch
from torch import Tensor, nn

from flexround.quant.functions import GAMMA, ZETA, RectifiedSigmoidRound, RoundingRegularizer
from flexround.quant.grid import Grid, clip
from flexround.quant.rounding import Axes, Rounding

TIE = 1e-6  # a tie starts this far from 1/2, on the side of the even code, as in round-to-nearest


class AdaRound(Rounding):
    """Ŵ = s1 (⌊W / s1⌋ + h(α)); initially h(α) is the fraction of W / s1, as in full precision."""

    fusable = True
    floor: Tensor

    def __init__(self, weight: Tensor, grid: Grid, axes: Axes) -> None:
        super().__init__(weight, grid, axes)
        scaled = weight.detach() / grid.step
        floor = scaled.floor()
        self.register_buffer("floor", floor, persistent=False)
        rest = scaled - floor
        rest = torch.where(scaled.round() > floor, rest.clamp_min(0.5 + TIE), rest.clamp_max(0.5 - TIE))
        self.alpha = nn.Parameter(-torch.log((ZETA - GAMMA) / (rest - GAMMA) - 1))

    def forward(self, weight: Tensor) -> Tensor:
        """Return the soft Ŵ, shape of ``weight``; only the floor stored at the start is read."""
        inputs = self.alpha, self.floor, self.grid.step, self.low, self.high
        return RectifiedSigmoidRound.of(*inputs, compiled=self.fused)

    @torch.no_grad()
    def codes(self, weight: Tensor) -> Tensor:
        """Return clamp(⌊W / s1⌋ + 1[α >= 0]), whole numbers, shape of ``weight``."""
        return clip(self.floor + (self.alpha >= 0), self.low, self.high)

    def regularizer(self, beta: float) -> Tensor:
        """Return the scalar Σ (1 - |2 h(α) - 1|^β)."""
        exponent = torch.tensor(beta, device=self.alpha.device) if self.fused else beta
        return RoundingRegularizer.of(self.alpha, exponent, compiled=self.fused)
