"""Static activation quantizer: LSQ step (Esser et al. 2020), random dropping (QDrop, Wei et al. 2022)."""

import torch
from torch import Tensor, nn

from flexround.quant.functions import StepQuantize
from flexround.quant.grid import MIN_STEP, Grid

BYTE_VALUES = 256


class ActivationQuantizer(nn.Module):
    """x̂ = Δ ⌊x / Δ⌉, clipped; Δ learnable, positive by construction (|Δ|, floored).

    Attributes:
        raw_step: parameter, shape (); the step is its absolute value.
        enabled: False passes x through.
        keep_probability: chance of each element to keep its quantized value while ``generator`` is set.
        generator: source of the drop masks; None keeps every element quantized.
    """

    def __init__(self, grid: Grid) -> None:
        super().__init__()
        self.raw_step = nn.Parameter(grid.step.detach().clone(), requires_grad=False)
        self.grid = grid
        self.low, self.high = grid.bounds
        self.enabled = True
        self.keep_probability = 1.0
        self.generator: torch.Generator | None = None

    def step(self) -> Tensor:
        """Return Δ > 0, shape ()."""
        return self.raw_step.abs().clamp_min(MIN_STEP)

    def forward(self, x: Tensor) -> Tensor:
        """Return the quantized activations, shape and type of ``x``."""
        if not self.enabled:
            return x
        if self.generator is None or self.keep_probability >= 1:
            kept = None
        else:
            kept = keep_mask(x.shape, self.keep_probability, self.generator, x.dtype)
        if kept is None and not torch.is_grad_enabled():
            return (x / self.step()).round_().clamp_(self.low, self.high).mul_(self.step())
        return StepQuantize.apply(x, self.step(), self.low, self.high, kept)


def keep_mask(shape: torch.Size, probability: float, generator: torch.Generator, dtype: torch.dtype) -> Tensor:
    """Return a mask of ones (probability ``probability``, realised in steps of 1/256) and zeros.

    One random byte an element: eight times fewer draws than ``torch.rand``, which would cost more than the quantizer.
    """
    count = shape.numel()
    words = torch.empty(-(-count // 8), dtype=torch.int64, device=generator.device)
    words.random_(-(2**63), None, generator=generator)
    random_bytes = words.view(torch.uint8)[:count].view(shape)
    mask = torch.empty(shape, dtype=dtype, device=generator.device)
    return torch.lt(random_bytes, round(probability * BYTE_VALUES), out=mask)
