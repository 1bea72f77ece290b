"""Activation quantizers: an LSQ step (Esser et al. 2020) or a grid a token; random drops (QDrop, Wei et al. 2022)."""

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
        keep_probability: chance of each element to keep its quantized value while ``generator`` is set.
        generator: source of the drop masks; None keeps every element quantized.
        low, high: the least and the largest code, numbers, or tensors while ``fused``.
        fused: whether it runs compiled.
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
        """Have ``forward`` run compiled from now on where gradients are wanted, or no longer."""
        self.fused = on
        self.low, self.high = (torch.as_tensor(b).to(self.raw_step.detach()) if on else b for b in self.grid.bounds)

    def step(self) -> Tensor:
        """Return Δ > 0, shape (); float32 if the parameter is half precision, in which the least step is 0."""
        raw = self.raw_step
        return raw.to(torch.promote_types(raw.dtype, torch.float32)).abs().clamp_min(MIN_STEP)

    def stored(self) -> Grid:
        """Return the grid as it is now, on the CPU; its step has the shape ()."""
        return dataclasses.replace(self.grid, step=self.step().detach().cpu())

    def forward(self, x: Tensor) -> Tensor:
        """Return the quantized activations, shape of ``x`` and, outside of autocast, its type."""
        if not self.fused and x.dtype in (torch.float16, torch.bfloat16):
            quantized = self(x.float())  # codes need more digits than half precision has
            return quantized if torch.is_autocast_enabled(x.device.type) else quantized.to(x.dtype)
        kept = None
        if self.generator is not None and self.keep_probability < 1:
            kept = Kept.drawn(x.numel(), self.keep_probability, self.generator)
        return self.quantize(x, kept)

    def quantize(self, x: Tensor, kept: "Kept | None") -> Tensor:
        """Return the quantized ``x``, float32 of any shape, where it is kept; None: everywhere."""
        mask = kept.mask(x, torch.bool) if self.fused and kept is not None else kept
        return StepQuantize.of(x, self.step(), self.low, self.high, mask, compiled=self.fused)


class TokenQuantizer(ActivationQuantizer):
    """Each token on a grid of its own, from its least to its largest value: nothing is searched or learned.

    So the authors' LLaMA scripts evaluate 8-bit activations. What is stored of it is the range of the codes; the step
    is empty.
    """

    def __init__(self, scheme: Scheme) -> None:
        low, high = code_range(scheme, has_negatives=True)
        super().__init__(Grid(torch.empty(0), torch.zeros(()), low, high))
        del self.raw_step
        self.scheme = scheme

    def fuse(self, on: bool) -> None:
        """Do nothing: a grid for each token is not compiled."""

    def stored(self) -> Grid:
        """Return the range of the codes, with an empty step."""
        return self.grid

    def quantize(self, x: Tensor, kept: "Kept | None") -> Tensor:
        """Return the quantized ``x``, float32 (..., C), where it is kept; the gradient passes."""
        values = x.detach()
        grid = grid_from_range(values.amin(-1, keepdim=True), values.amax(-1, keepdim=True), self.scheme, True)
        moved = clip((values / grid.step).round_(), *grid.bounds) * grid.step - values
        return x + (moved if kept is None else moved * kept.mask(x, x.dtype))


def of_grid(grid: Grid) -> ActivationQuantizer:
    """Return the quantizer that stores a grid so; see ``stored``."""
    if grid.step.numel():
        return ActivationQuantizer(grid)
    return TokenQuantizer(Scheme((grid.qmax - grid.qmin).bit_length(), symmetric=grid.qmin < 0))


class Kept(NamedTuple):
    """Random elements of a tensor, packed: a byte serves as many as their probability allows, eight for 1/2.

    Attributes:
        bytes: uint8; plane p of them, the ``bits`` from p * ``bits`` on, is for the p-th part of the elements.
        bits: of a byte for each element.
        threshold: an element is kept whose bits, on top of a byte, are below it.
    """

    bytes: Tensor
    bits: int
    threshold: int

    @classmethod
    def drawn(cls, count: int, probability: float, generator: torch.Generator) -> Self:
        """Draw for so many elements, each with ``probability`` in (0, 1), realised in steps of 1/256.

        ``torch.rand`` would cost more than the quantizer.
        """
        bits = next(bits for bits in (1, 2, 4, 8) if bits == BYTE or (probability * 2**bits).is_integer())
        size = -(-count // (BYTE // bits))
        words = torch.empty(-(-size // BYTE), dtype=torch.int64, device=generator.device)
        words.random_(-(2**63), None, generator=generator)
        threshold = min(round(probability * 2**bits), 2**bits - 1) << (BYTE - bits)
        return cls(words.view(torch.uint8)[:size], bits, threshold)

    def mask(self, like: Tensor, kind: torch.dtype) -> Tensor:
        """Return ones and zeros of type ``kind``, with shape and memory layout of ``like``."""
        shifts = torch.arange(0, BYTE, self.bits, dtype=torch.uint8, device=self.bytes.device).unsqueeze(1)
        mask = torch.empty(len(shifts), len(self.bytes), dtype=kind, device=self.bytes.device)
        torch.lt(self.bytes << shifts, self.threshold, out=mask)  # a shift leaves the lower bits on top
        return mask.as_strided(like.shape, torch.empty_like(like, device="meta").stride())
