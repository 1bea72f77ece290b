"""Activations that flow from block to block, and batches drawn from them."""

import dataclasses
import logging
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from flexround.quant import native
from flexround.quant.activation import Kept

log = logging.getLogger(__name__)

GPU_PART = 0.5  # fraction of a GPU's memory for the caches; the rest is for the current block
HELD = 3  # caches per block: full-precision input, quantized input, output
AHEAD = 256  # batches whose rows are drawn at a time
IMAGES, LAST = 4, (0, 2, 3, 1)  # dimensions of a batch of images, and their order with the channels last
GB = 1e9


@dataclasses.dataclass(frozen=True)
class Store:
    """The memory and layout of caches.

    Attributes:
        device: the GPU, or the host.
        dtype: type of stored activations; computations on them use float32.
        pinned: whether the host's memory is page-locked, so that a GPU copies directly.
        keeps_strides: whether a cache has its activations' memory layout; else images have channels last, which makes
            small convolutions up to 1.5 x faster.
    """

    device: torch.device
    dtype: torch.dtype = torch.float32
    pinned: bool = False
    keeps_strides: bool = False

    def __str__(self) -> str:
        return "on the GPU" if self.device.type == "cuda" else "in page-locked memory" if self.pinned else "in memory"

    def empty(self, rows: int, like: Tensor) -> Tensor:
        """Return an uninitialised cache (rows, ...) for activations ``like`` (n, ...)."""
        order = order_of(like) if self.keeps_strides else LAST if like.ndim == IMAGES else tuple(range(like.ndim))
        dtype, shape = self.dtype if like.is_floating_point() else like.dtype, (rows, *like.shape[1:])
        flat = torch.empty([shape[dim] for dim in order], dtype=dtype, device=self.device, pin_memory=self.pinned)
        return from_memory(flat, order)

    def copy(self, x: Tensor) -> Tensor:
        """Return a copy of ``x`` (N, ...) in the caches' layout, which affects the last bits of later results."""
        return self.empty(len(x), x).copy_(x)


def order_of(x: Tensor) -> tuple[int, ...]:
    """Return the dimensions of ``x`` (N, ...) in memory order: rows first, then from the slowest to the fastest."""
    if x.ndim == IMAGES and x.is_contiguous(memory_format=torch.channels_last) and x.stride(1) == 1:
        return LAST
    strides = x.stride()
    return (0, *sorted(range(1, x.ndim), key=lambda dim: -strides[dim]))


def from_memory(x: Tensor, order: Sequence[int]) -> Tensor:
    """Undo a permutation of dimensions to memory ``order``; return the tensor (N, ...)."""
    return x.permute([order.index(dim) for dim in range(len(order))])


def limit(device: torch.device, gpu_mb: int | None = None, jobs: int = 1) -> int:
    """Return the bytes of GPU memory for caches: ``gpu_mb``, or half of the share of each of the GPU's ``jobs``."""
    gpu = torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else 0
    return int(GPU_PART * gpu / jobs) if gpu_mb is None else gpu_mb * 2**20


def plan(
    row: int, rows: int, device: torch.device, dtype: torch.dtype, most: int, keeps_strides: bool = False
) -> Store:
    """Choose the memory of caches by their bytes: the GPU if they fit there, else the host.

    Args:
        row: elements per sample in the largest cache.
        rows: number of samples.
        device: where blocks run.
        dtype: of the caches.
        most: bytes of GPU memory available to caches.
        keeps_strides: see ``Store``.
    """
    size, gpu = HELD * row * rows * dtype.itemsize, device.type == "cuda"
    store = Store(device if size <= most else torch.device("cpu"), dtype, gpu and size > most, keeps_strides)
    log.info("caches: %.3g GB %s", size / GB, store)
    return store


def slices(count: int, size: int) -> list[slice]:
    """Return slices of ``size`` rows that cover ``count`` rows; the last slice may be smaller."""
    return [slice(start, min(start + size, count)) for start in range(0, count, size)]


def on(device: torch.device, rows: Tensor) -> Tensor:
    """Copy cached rows (n, ...) to a device; always a copy, because modules may write on their input."""
    moved = rows.to(device, non_blocking=True)  # before changing the type: half the bytes, and no waiting
    return moved.to(torch.float32 if rows.is_floating_point() else rows.dtype, copy=moved is rows)


def sequences(x: Tensor, mask: Tensor) -> bool:
    """Return whether ``x`` (N, ...) holds a vector for each token of ``mask``, bool (N, T)."""
    return x.ndim > 2 and x.shape[:2] == mask.shape


def gathered(x: Tensor, index: Tensor, length: int | None, device: torch.device) -> Tensor:
    """Return rows of a cache (N, ...) in the host's memory, cut to ``length`` tokens, with unchanged layout.

    A GPU copies them from page-locked memory without waiting: PyTorch reuses the memory after the copy.
    ``index`` is int64 (n,) on the CPU.
    """
    x = x if length is None else x[:, :length]
    order = order_of(x)
    rows = x.permute(order)
    buffer = x.new_empty((len(index), *rows.shape[1:]), pin_memory=device.type == "cuda")
    torch.index_select(rows, 0, index, out=buffer)
    return from_memory(buffer.to(device, non_blocking=True), order)


@dataclasses.dataclass(eq=False)
class Batches:
    """Draws batches of (input, target, mask) rows for one block, without ever waiting for a GPU.

    Attributes:
        quantized: (N, ...) input from the quantized predecessors.
        full: (N, ...) full-precision input, mixed in element by element with probability 1 - ``keep`` (QDrop).
        target: (N, ...) full-precision output.
        mask: (N, T) real tokens, or None.
        trim: whether a batch of sequences ends with the last real token of its longest row, which does not change a
            masked error.
        size: rows per batch.
        keep: probability that an input element is the quantized one.
        replacement: draw with replacement (QDrop) or without (BRECQ), within a batch.
        rows: CPU generator of row numbers.
        masks: generator of the mixing masks, on the device of the block.
    """

    quantized: Tensor
    full: Tensor
    target: Tensor
    mask: Tensor | None
    trim: bool
    size: int
    keep: float
    replacement: bool
    rows: torch.Generator
    masks: torch.Generator

    def __post_init__(self) -> None:
        trim = self.trim and self.mask is not None and all(sequences(x, self.mask) for x in (self.full, self.target))
        self._row_lengths = self.mask.sum(1).cpu() if trim else None  # type: ignore[union-attr]
        self.mask = None if self.mask is None else self.mask.to(self.masks.device)
        self._batches: Iterator[tuple[Tensor, Tensor, int | None]] = iter(())

    def draw(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return input (B, ...), target (B, ...) and mask, bool (B, T), on the device of ``masks``; B is ``size``."""
        batch = next(self._batches, None)
        if batch is None:
            self._batches = self._drawn_ahead()
            batch = next(self._batches)
        target = self._rows(self.target, *batch).float()
        x = self._mixed(*batch) if self.keep < 1 else self._rows(self.quantized, *batch).float()
        return x, target, None if self.mask is None else self._rows(self.mask, *batch)

    def _drawn_ahead(self) -> Iterator[tuple[Tensor, Tensor, int | None]]:
        """Draw row numbers of many batches; return for each batch its numbers on CPU and device, and its length.

        This is no generator, because its reference to this object would keep the caches alive until a collection.
        """
        host = torch.stack([self._draw_rows() for _ in range(AHEAD)])
        lengths = [None] * AHEAD if self._row_lengths is None else self._row_lengths[host].amax(1).tolist()
        pinned = host.pin_memory() if self.masks.device.type == "cuda" else host
        return zip(host, pinned.to(self.masks.device, non_blocking=True), lengths, strict=True)

    def _draw_rows(self) -> Tensor:
        """Return the row numbers of a batch, int64 (B,)."""
        count = len(self.target)
        if self.replacement:
            return torch.randint(count, (self.size,), generator=self.rows, device="cpu")
        return torch.randperm(count, generator=self.rows, device="cpu")[: self.size]

    def _mixed(self, host: Tensor, there: Tensor, length: int | None) -> Tensor:
        """Return rows (B, ...) whose elements are the quantized ones with probability ``keep``."""
        order = order_of(self.quantized)
        both = self.full, self.quantized
        if length is None and order == order_of(self.full) and self.masks.device.type == "cpu" and native.fits(*both):
            shape = [self.quantized.shape[dim] for dim in order]
            full, x = (each.permute(order).flatten(1) for each in both)
            kept = Kept.drawn(len(host) * x.shape[1], self.keep, self.masks)
            return from_memory(torch.ops.flexround.mix_rows(full, x, host, *kept).view(-1, *shape[1:]), order)
        full, x = (self._rows(each, host, there, length).float() for each in both)
        return torch.lerp(full, x, Kept.drawn(x.numel(), self.keep, self.masks).mask(x, x.dtype))

    def _rows(self, tensor: Tensor, host: Tensor, there: Tensor, length: int | None) -> Tensor:
        if tensor.device.type != self.masks.device.type:
            return gathered(tensor, host, length, self.masks.device)
        tensor = tensor if length is None else tensor[:, :length]
        order = order_of(tensor)
        return from_memory(tensor.permute(order)[there], order)
