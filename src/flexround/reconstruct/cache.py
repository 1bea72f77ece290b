"""Activations that flow from block to block, and batches drawn from them."""

from collections.abc import Callable

import torch
from torch import Tensor

from flexround.quant.activation import keep_mask

ROOM = 0.5  # part of the free GPU memory the caches may take; the rest is for the block at work


def cache_device(samples: Tensor, copies: int, device: torch.device) -> torch.device:
    """Return where caches of ``copies`` times this tensor's bytes go: the GPU if they fit, else the host."""
    if device.type != "cuda":
        return device
    free, _ = torch.cuda.mem_get_info(device)
    return device if samples.nbytes * copies < ROOM * free else torch.device("cpu")


def empty(shape: torch.Size, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return an uninitialised cache; images lie channels last, which makes small convolutions up to 1.5 x faster."""
    layout = torch.channels_last if len(shape) == 4 else torch.contiguous_format
    return torch.empty(shape, dtype=dtype, device=device, memory_format=layout)


def cached(x: Tensor, device: torch.device) -> Tensor:
    """Return a copy of ``x`` laid out as every cache is: the layout decides the last bits of what follows."""
    return empty(x.shape, x.dtype, device).copy_(x)


@torch.no_grad()
def forward(
    module: Callable[[Tensor, Tensor | None], Tensor],
    x: Tensor,
    mask: Tensor | None,
    batch: int,
    device: torch.device,
) -> Tensor:
    """Run all rows of ``x`` (N, ...) and ``mask`` through ``module`` in batches; the result lies where ``x`` lies.

    Each batch is copied, because a module may begin with an in-place operation.
    """
    output = None
    for start in range(0, len(x), batch):
        rows = slice(start, start + batch)
        part = module(x[rows].to(device, copy=True), None if mask is None else mask[rows].to(device))
        if output is None:  # one allocation: collecting parts and joining them would need the memory twice
            output = empty(torch.Size((len(x), *part.shape[1:])), part.dtype, x.device)
        output[start : start + batch] = part
    assert output is not None
    return output


class Batches:
    """Draws batches of (input, target, mask) rows for one block.

    Args:
        quantized: (N, ...) input from the quantized predecessors.
        full: (N, ...) full-precision input, mixed in element by element with probability 1 - ``keep`` (QDrop).
        target: (N, ...) full-precision output.
        mask: (N, T) real tokens, or None.
        trim: whether a batch ends with the last real token of its longest row, which leaves a masked error as it is.
        size: rows per batch.
        keep: probability of an input element to be the quantized one.
        replacement: draw with replacement (QDrop) or without (BRECQ), within a batch.
        rows: CPU generator of row numbers.
        masks: generator of the mixing masks, on the device of the block.
    """

    def __init__(
        self,
        quantized: Tensor,
        full: Tensor,
        target: Tensor,
        mask: Tensor | None,
        trim: bool,
        size: int,
        keep: float,
        replacement: bool,
        rows: torch.Generator,
        masks: torch.Generator,
    ) -> None:
        self.quantized, self.full, self.target, self.mask = quantized, full, target, mask
        self.size, self.keep, self.replacement = size, keep, replacement
        self.rows, self.masks = rows, masks
        # On the CPU, where the row numbers are: asking a GPU would halt it in every iteration.
        self.lengths = mask.sum(1).cpu() if trim and mask is not None else None

    def draw(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return (input, target, mask) on the device of ``masks``."""
        count = len(self.target)
        if self.replacement:
            index = torch.randint(count, (self.size,), generator=self.rows)
        else:
            index = torch.randperm(count, generator=self.rows)[: self.size]
        length = None if self.lengths is None else int(self.lengths[index].max())
        index = index.to(self.target.device)
        x, target = (self._rows(tensor, index, length) for tensor in (self.quantized, self.target))
        if self.keep < 1:
            full = self._rows(self.full, index, length)
            x = torch.lerp(full, x, keep_mask(x, self.keep, self.masks))
        return x, target, None if self.mask is None else self._rows(self.mask, index.to(self.mask.device), length)

    def _rows(self, tensor: Tensor, index: Tensor, length: int | None) -> Tensor:
        # Indexing keeps the layout; index_select does not.
        found = tensor[index] if length is None else tensor[index, :length]
        return found.to(self.masks.device, non_blocking=True)
