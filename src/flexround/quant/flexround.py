"""Roundings whose code is ⌊W' / d⌉ with a learned divisor d: FlexRound, AdaQuant, both together, LRQ."""

import torch
from torch import Tensor, nn

from flexround.quant.functions import DivideRound
from flexround.quant.grid import Grid
from flexround.quant.rounding import Axes, Rounding

SMALLEST = 1e-8  # direct form: no scale falls below this part of its initial value
PART = 4  # LRQ: of the smaller side of a weight: 1024 of 4096 and 2048 of 8192 in the paper
SEED = 0  # LRQ: of U, one for all: a rounding has no generator of its run


class FlexRound(Rounding):
    """Equation 2: Ŵ = s1 ⌊W / (s1 ⊙ S2 ⊙ s3 ⊙ s4)⌉ with every scale positive, learnable, starting at RTN.

    Attributes:
        d1, d2, d3, d4: ln (s1 / initial s1), ln S2, ln s3, ln s4 (in the direct form s1, S2, s3, s4 themselves); d3 and
            d4 may be None.

    Options:
        learn_s1: learn the step s1 too; False is Ablation Study 1 of table 1.
        use_s3_s4: have s3 (per output channel) and s4 (per input channel, convolutions only); False is Ablation 2.
        form: ``log`` learns ln s (positive by construction, released code), ``direct`` learns s itself.
    """

    fusable = True

    def __init__(
        self,
        weight: Tensor,
        grid: Grid,
        axes: Axes,
        learn_s1: bool = True,
        use_s3_s4: bool = True,
        form: str = "log",
    ) -> None:
        super().__init__(weight, grid, axes)
        if form not in ("log", "direct"):
            raise ValueError(f"form {form!r}: choose log or direct")
        self.direct = form == "direct"
        self.d1 = nn.Parameter(torch.zeros_like(grid.step), requires_grad=learn_s1)
        self.d2 = self.ones_log(weight, *range(weight.ndim))
        self.d3 = self.ones_log(weight, axes.output) if use_s3_s4 else None
        self.d4 = self.ones_log(weight, axes.input) if use_s3_s4 and axes.input is not None else None
        if self.direct:
            for parameter in self.parameters():
                parameter.data.exp_()
            self.d1.data.mul_(grid.step)

    def forward(self, weight: Tensor) -> Tensor:
        """Return s1 ⌊W / (s1 ⊙ S2 ⊙ s3 ⊙ s4)⌉, clipped to the grid, shape of ``weight``."""
        return DivideRound.of(weight, self.grid.step, *self.logs(), self.low, self.high, compiled=self.fused)

    def logs(self) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        """Return (ln (s1 / initial s1), ln S2, ln s3, ln s4), shapes of ``grid.step``, the weight and channels."""
        if not self.direct:
            return self.d1, self.d2, self.d3, self.d4
        d3, d4 = (None if d is None else d.clamp_min(SMALLEST).log() for d in (self.d3, self.d4))
        return (self.d1 / self.grid.step).clamp_min(SMALLEST).log(), self.d2.clamp_min(SMALLEST).log(), d3, d4

    def step(self) -> Tensor:
        return self.grid.step * self.logs()[0].detach().exp()


class AdaQuant(Rounding):
    """AdaQuant (Hubara et al. 2021): Ŵ = s1 ⌊(W + V) / s1⌉, V and s1 learned (paper, section 3.1).

    The groups ``v`` and ``s1`` have learning rates of their own.
    """

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


class LRQ(Rounding):
    """LRQ (Lee et al. 2024): FlexRound whose S2 has low rank, Ŵ = s1 ⌊W / (s1 ⊙ exp(L U + r + c))⌉.

    W is (Cout, features), the features of a convolution being its input channels and kernel.

    Attributes:
        d1: ln (s1 / initial s1).
        left, right: L (Cout, rank), zeros at first, and U (rank, features).
        row, column: r (Cout, 1), in the weight's layout, and c (1, features); zeros at first.

    Options:
        rank: of L U; none for a quarter of the smaller side.
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
        with torch.autocast(weight.device.type, enabled=False):  # a compiled formula after it may see autocast
            product = torch.addmm(self.column, self.left, self.right)
        d2 = self.axes.undo_matrix(product, weight)
        scales = self.grid.step, self.d1, d2, self.row, None
        return DivideRound.of(weight, *scales, self.low, self.high, compiled=self.fused)

    def step(self) -> Tensor:
        return self.grid.step * self.d1.detach().exp()
