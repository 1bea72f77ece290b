"""Static activation quantizer: LSQ step (Esser et al. 2020), random dropping (QDrop, Wei et al. 2022)."""

import torch
from torch import Tensor, nn

from flexround.quant.functions import StepQuantize
from flexround.quant.grid import MIN_STEP, Grid

BYTE = 8  # bits


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
        if x.dtype in (torch.float16, torch.bfloat16):
            x = x.float()  # codes need more digits than autocast leaves
        if self.generator is None or self.keep_probability >= 1:
            kept = None
        else:
            kept = keep_mask(x, self.keep_probability, self.generator)
        if kept is None and not torch.is_grad_enabled():
            return (x / self.step()).round_().clamp_(self.low, self.high).mul_(self.step())
        return StepQuantize.apply(x, self.step(), self.low, self.high, kept)


def keep_mask(like: Tensor, probability: float, generator: torch.Generator) -> Tensor:
    """Return a mask of ones (``probability`` in (0, 1), realised in steps of 1/256) and zeros.

    Shape, type and memory layout are those of ``like``: layouts that differ would make every use of it several times
    slower. A random byte serves as many elements as the probability allows (eight for 1/2): ``torch.rand`` would cost
    more than the quantizer.
    """
    bits = next(bits for bits in (1, 2, 4, 8) if bits == BYTE or (probability * 2**bits).is_integer())
    planes, count, device = BYTE // bits, like.numel(), generator.device
    size = -(-count // planes)
    words = torch.empty(-(-size // BYTE), dtype=torch.int64, device=device)
    words.random_(-(2**63), None, generator=generator)
    shifts = torch.arange(0, BYTE, bits, dtype=torch.uint8, device=device).unsqueeze(1)
    mask = torch.empty(planes, size, dtype=like.dtype, device=device)
    threshold = min(round(probability * 2**bits), 2**bits - 1) << (BYTE - bits)
    torch.lt(words.view(torch.uint8)[:size] << shifts, threshold, out=mask)  # a shift leaves the lower bits on top
    return mask.as_strided(like.shape, torch.empty_like(like, device="meta").stride())
