"""Rounding-to-nearest: Ŵ = s1 ⌊W / s1⌉ (paper, section 3.1)."""

from torch import Tensor

from flexround.quant.grid import nearest_codes
from flexround.quant.rounding import Rounding


class RTN(Rounding):
    """Round-to-nearest, without learning; every other rounding starts from it."""

    def forward(self, weight: Tensor) -> Tensor:
        """Return s1 ⌊W / s1⌉, clipped to the grid, shape of ``weight``."""
        return nearest_codes(weight, self.grid) * self.grid.step
