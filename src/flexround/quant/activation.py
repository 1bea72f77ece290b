"""Activation quantizers: an LSQ step (Esser et al. 2020) or a grid per token; random drops (QDrop, Wei et al. 2022)."""

import dataclasses
from typing import NamedTuple, Self

import torch
from torch import Tensor, nn

from flexround.quant.functions import StepQuantize
from flexround.quant.grid import MIN_STEP, Grid, Scheme, clip, code_range, grid_from_range

BYTE = 8  # bits


class ActivationQuantizer(nn.Module):
    """x̂ = Δ ⌊x / Δ⌉, clipped; Δ learnable, positive by construction (|Δ|, floored).

    Attributes:
        raw_step: parameter, shape (); the step is its absolute value.
        keep_probability: probability that an element keeps its quantized value while ``generator`` is set.
        generator: source of the drop masks; None keeps every element quantized.
        low, high: the smallest and the largest code: numbers, or tensors while ``fused``.
        fused: whether the quantizer runs compiled.
    """

    def __init__(self, grid: Grid) -> None:
        super().__init__()
        self.raw_step = nn.Parameter(grid.step.detach().clone(), requires_grad=False)
        self.grid = grid
        self.low, self.high = grid.bounds
        self.keep_probability = 1.0
        self.generator: torch.Generator | None = None
        self.fused = False

    def fuse(self, on: bool) -> None:
        """Switch compilation of ``forward`` on or off."""
        self.fused = on
        self.low, self.high = (torch.as_tensor(b).to(self.raw_step.detach()) if on else b for b in self.grid.bounds)

    def step(self) -> Tensor:
        """Return Δ > 0, shape (); float32 for a parameter in half precision, where the smallest step would be 0."""
        raw = self.raw_step
        return raw.to(torch.promote_types(raw.dtype, torch.float32)).abs().clamp_min(MIN_STEP)

    def stored(self) -> Grid:
        """Return the current grid on the CPU, with a step of shape ()."""
        return dataclasses.replace(self.grid, step=self.step().detach().cpu())

    def forward(self, x: Tensor) -> Tensor:
        """Return the quantized activations with the shape and, outside autocast, the type of ``x``."""
        if not self.fused and x.dtype in (torch.float16, torch.bfloat16):
            quantized = self(x.float())  # half precision has too few digits for codes
            return quantized if torch.is_autocast_enabled(x.device.type) else quantized.to(x.dtype)
        kept = None
        if self.generator is not None and self.keep_probability < 1:
            kept = Kept.drawn(x.numel(), self.keep_probability, self.generator)
        return self.quantize(x, kept)

    def quantize(self, x: Tensor, kept: "Kept | None") -> Tensor:
        """Return ``x``, float32 of any shape, with its ``kept`` elements quantized; None quantizes all of them."""
        mask = kept.mask(x, torch.bool) if self.fused and kept is not None else kept
        return StepQuantize.of(x, self.step(), self.low, self.high, mask, compiled=self.fused)


class TokenQuantizer(ActivationQuantizer):
    """Quantizes each token on its own grid, from its smallest to its largest value, without search or learning.

    The authors' LLaMA scripts evaluate 8-bit activations this way. The stored grid has the range of the codes and an
    empty step.
    """

    def __init__(self, scheme: Scheme) -> None:
        low, high = code_range(scheme, has_negatives=True)
        super().__init__(Grid(torch.empty(0), torch.zeros(()), low, high))
        del self.raw_step
        self.scheme = scheme

    def fuse(self, on: bool) -> None:
        """Do nothing: grids per token are never compiled."""

    def stored(self) -> Grid:
        """Return a grid with the range of the codes and an empty step."""
        return self.grid

    def quantize(self, x: Tensor, kept: "Kept | None") -> Tensor:
        """Return ``x``, float32 (..., C), with its ``kept`` elements quantized; gradients pass unchanged."""
        values = x.detach()
        grid = grid_from_range(values.amin(-1, keepdim=True), values.amax(-1, keepdim=True), self.scheme, True)
        moved = clip((values / grid.step).round_(), *grid.bounds) * grid.step - values
        return x + (moved if kept is None else moved * kept.mask(x, x.dtype))


def of_grid(grid: Grid) -> ActivationQuantizer:
    """Return the quantizer whose ``stored`` grid is ``grid``."""
    if grid.step.numel():
        return ActivationQuantizer(grid)
    return TokenQuantizer(Scheme((grid.qmax - grid.qmin).bit_length(), symmetric=grid.qmin < 0))


class Kept(NamedTuple):
    """A packed random mask: one byte decides 8 / ``bits`` elements, eight of them for probability 1/2.

    Attributes:
        bytes: uint8; plane p, the ``bits`` from p * ``bits`` on, decides the p-th part of the elements.
        bits: random bits per element.
        threshold: an element is kept if its bits, shifted to the top of a byte, are below this number.
    """

    bytes: Tensor
    bits: int
    threshold: int

    @classmethod
    def drawn(cls, count: int, probability: float, generator: torch.Generator) -> Self:
        """Draw a mask for ``count`` elements, each kept with ``probability`` in (0, 1), in steps of 1/256.

        ``torch.rand`` would take longer than the quantizer.
        """
        bits = next(bits for bits in (1, 2, 4, 8) if bits == BYTE or (probability * 2**bits).is_integer())
        size = -(-count // (BYTE // bits))
        words = torch.empty(-(-size // BYTE), dtype=torch.int64, device=generator.device)
        words.random_(-(2**63), None, generator=generator)
        threshold = min(round(probability * 2**bits), 2**bits - 1) << (BYTE - bits)
        return cls(words.view(torch.uint8)[:size], bits, threshold)

    def mask(self, like: Tensor, kind: torch.dtype) -> Tensor:
        """Return ones and zeros of type ``kind``, with the shape and memory layout of ``like``."""
        shifts = torch.arange(0, BYTE, self.bits, dtype=torch.uint8, device=self.bytes.device).unsqueeze(1)
        mask = torch.empty(len(shifts), len(self.bytes), dtype=kind, device=self.bytes.device)
        torch.lt(self.bytes << shifts, self.threshold, out=mask)  # shifting brings the lower bits to the top
        return mask.as_strided(like.shape, torch.empty_like(like, device="meta").stride())
