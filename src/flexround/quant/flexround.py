"""FlexRound, equation 2: Ŵ = s1 ⌊W / (s1 ⊙ S2 ⊙ s3 ⊙ s4)⌉ with every scale positive, learnable, starting at RTN."""

import torch
from torch import Tensor, nn

from flexround.quant.functions import DivideRound
from flexround.quant.grid import Grid
from flexround.quant.rounding import Axes, Rounding

SMALLEST = 1e-8  # direct form: scales stay above this fraction of their initial value


class FlexRound(Rounding):
    """The paper's method.

    Attributes:
        d1, d2, d3, d4: ln (s1 / initial s1), ln S2, ln s3, ln s4 (in the direct form s1, S2, s3, s4 themselves); d3 and
            d4 may be None.

    Options:
        learn_s1: learn the step s1 too; False is Ablation Study 1 of table 1.
        use_s3_s4: use s3 (per output channel) and s4 (per input channel, convolutions only); False is Ablation 2.
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
        self.direct = {"log": False, "direct": True}[form]
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
