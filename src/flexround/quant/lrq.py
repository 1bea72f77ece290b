"""LRQ (Lee et al. 2024): FlexRound with a low-rank S2, Ŵ = s1 ⌊W / (s1 ⊙ exp(L U + r + c))⌉."""

import torch
from torch import Tensor, nn

from flexround.quant.functions import DivideRound
from flexround.quant.grid import Grid
from flexround.quant.rounding import Axes, Rounding

PART = 4  # default rank: a weight's smaller side divided by 4, in the paper 1024 for 4096 and 2048 for 8192
SEED = 0  # draws U of every weight: a rounding has no access to the run's generators


class LRQ(Rounding):
    """W is (Cout, features); the features of a convolution are its input channels and kernel.

    Attributes:
        d1: ln (s1 / initial s1).
        left, right: L (Cout, rank), zeros at first, and U (rank, features).
        row, column: r (Cout, 1), in the weight's layout, and c (1, features); zeros at first.

    Options:
        rank: of L U; by default a quarter of the smaller side.
    """

    fusable = True

    def __init__(self, weight: Tensor, grid: Grid, axes: Axes, rank: int | None = None) -> None:
        super().__init__(weight, grid, axes)
        matrix = axes.matrix(weight.detach())
        outputs, features = matrix.shape
        if rank is None:
            rank = max(1, min(outputs, features) // PART)
        self.d1 = nn.Parameter(torch.zeros_like(grid.step))
        self.left = nn.Parameter(matrix.new_zeros(outputs, rank))
        drawn = torch.rand(rank, features, generator=torch.Generator().manual_seed(SEED), device="cpu")
        self.right = nn.Parameter((2 * drawn - 1).div(features**0.5).to(matrix))
        self.row = self.ones_log(weight, axes.output)
        self.column = nn.Parameter(matrix.new_zeros(1, features))

    def forward(self, weight: Tensor) -> Tensor:
        """Return s1 ⌊W / (s1 ⊙ exp(L U + r + c))⌉, clipped to the grid, shape of ``weight``."""
        with torch.autocast(weight.device.type, enabled=False):  # the compiled formula below may run under autocast
            product = torch.addmm(self.column, self.left, self.right)
        d2 = self.axes.undo_matrix(product, weight)
        scales = self.grid.step, self.d1, d2, self.row, None
        return DivideRound.of(weight, *scales, self.low, self.high, compiled=self.fused)

    def step(self) -> Tensor:
        return self.grid.step * self.d1.detach().exp()
