"""Activations that flow from block to block, and batches drawn from them."""

import dataclasses
import logging
import math
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from flexround.errors import InputError
from flexround.quant.activation import keep_mask

log = logging.getLogger(__name__)

GPU_PART, HOST_PART = 0.5, 0.5  # of a memory, that the caches may take; the rest is for the block at work
HELD = 3  # caches at a block: full-precision input, quantized input, output
KEPT = 5  # caches on disk: both inputs and both outputs of a block, and the first of the next while they are recorded
CARRIED = 2  # caches that a block hands on
AHEAD = 256  # batches whose rows are drawn at a time
IMAGES, LAST = 4, (0, 2, 3, 1)  # dimensions of a batch of images, and their order with the channels last
SUFFIX = ".cache"
GB = 1e9


@dataclasses.dataclass(frozen=True)
class Store:
    """Where caches lie.

    Attributes:
        device: the GPU, or the host.
        dtype: of activations; whatever uses them computes in float32.
        directory: of memory-mapped files, one a cache; None keeps them in memory.
        pinned: whether the host's memory is page-locked, from where a GPU copies without a detour.
        largest: bytes of the largest cache.
        keeps_strides: whether a cache lies in memory as the activations do that it is for; else images lie channels
            last, which makes small convolutions up to 1.5 x faster.
    """

    device: torch.device
    dtype: torch.dtype = torch.float32
    directory: Path | None = None
    pinned: bool = False
    largest: int = 0
    keeps_strides: bool = False

    def __str__(self) -> str:
        if self.directory is not None:
            return "in files"
        return "on the GPU" if self.device.type == "cuda" else "in page-locked memory" if self.pinned else "in memory"

    def empty(self, rows: int, like: Tensor) -> Tensor:
        """Return an uninitialised cache (rows, ...) for activations ``like`` these, (n, ...).

        Raises:
            InputError: no room on the disk.
        """
        dtype = self.dtype if like.is_floating_point() else like.dtype
        shape = torch.Size((rows, *like.shape[1:]))
        order = order_of(like) if self.keeps_strides else LAST if like.ndim == IMAGES else tuple(range(like.ndim))
        if self.directory is None:
            place = {"dtype": dtype, "device": self.device, "pin_memory": self.pinned}
            return from_memory(torch.empty([shape[dim] for dim in order], **place), order)  # type: ignore[call-overload]
        handle, name = tempfile.mkstemp(dir=self.directory, suffix=SUFFIX)
        try:  # reserved at once: a full disk would end the process in the middle of a block, without a word
            os.posix_fallocate(handle, 0, math.prod(shape) * dtype.itemsize)
        except OSError as error:
            raise InputError(f"{self.directory}: no room for a cache ({error.strerror}); free space there") from error
        finally:
            os.close(handle)
        return mapped(Path(name), shape, dtype, order)

    def copy(self, x: Tensor) -> Tensor:
        """Return a copy of ``x`` (N, ...) laid out as every cache is: layout decides the last bits of what follows."""
        return self.empty(len(x), x).copy_(x)


def order_of(x: Tensor) -> tuple[int, ...]:
    """Return the dimensions of ``x`` (N, ...) as they lie in memory, the slowest first, rows before all others."""
    if x.ndim == IMAGES and x.is_contiguous(memory_format=torch.channels_last) and x.stride(1) == 1:
        return LAST
    strides = x.stride()
    return (0, *sorted(range(1, x.ndim), key=lambda dim: -strides[dim]))


def from_memory(x: Tensor, order: Sequence[int]) -> Tensor:
    """Return the tensor (N, ...) whose dimensions lie in this order, given it with its dimensions in this order."""
    return x.permute([order.index(dim) for dim in range(len(order))])


def mapped(path: Path, shape: torch.Size, dtype: torch.dtype, order: Sequence[int]) -> Tensor:
    """Return the tensor, ``shape`` (N, ...), whose memory is a file, in which its dimensions have this order."""
    flat = torch.from_file(str(path), shared=True, size=math.prod(shape), dtype=dtype)
    return from_memory(flat.view([shape[dim] for dim in order]), order)


def file_of(x: Tensor) -> Path | None:
    """Return the file that is the memory of a cache, any shape, if there is one."""
    name = x.untyped_storage().filename if x.device.type == "cpu" else None
    return Path(name) if name else None


def write(x: Tensor, path: Path) -> None:
    """Write a cache (N, ...) into a file, row by row in the order in which they lie in memory.

    A GPU copies them beside its other work; the cache must be finished, and nobody may change it.
    """
    stream = torch.cuda.Stream(x.device) if x.device.type == "cuda" else None
    with open(path, "wb") as file:
        for row in x.permute(order_of(x)):
            with torch.cuda.stream(stream):
                host = row.detach().contiguous().cpu()
            file.write(host.view(torch.uint8).numpy())


class Limits(NamedTuple):
    """The bytes of the host's memory and of a GPU's that caches may take."""

    host: int
    gpu: int


def limits(device: torch.device, host_mb: int | None = None, gpu_mb: int | None = None, jobs: int = 1) -> Limits:
    """Return the limits as said, or half of the host's memory, and half of what each of the GPU's ``jobs`` has."""
    host = int(HOST_PART * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    gpu = torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else 0
    return Limits(
        host if host_mb is None else host_mb * 2**20, int(GPU_PART * gpu / jobs) if gpu_mb is None else gpu_mb * 2**20
    )


def plan(
    row: int,
    rows: int,
    device: torch.device,
    dtype: torch.dtype,
    directory: Path | None,
    limits: Limits,
    keeps_strides: bool = False,
) -> Store:
    """Choose where caches lie, by their bytes: on the GPU, in the host's memory, in memory-mapped files; write nothing.

    The choice follows from the sizes of the job and of the memories, not from what else happens to lie there.

    Args:
        row: elements of a sample in the largest cache.
        rows: samples.
        device: where blocks run.
        dtype: of the caches.
        directory: for files, and for the state that lets a killed job go on; may not exist yet. None: all is in memory.
        limits: of the memories.
        keeps_strides: see ``Store``.

    Raises:
        InputError: too little room on the disk.
    """
    one = row * rows * dtype.itemsize
    facts: dict[str, Any] = {"dtype": dtype, "largest": one, "keeps_strides": keeps_strides}
    if directory is not None:
        _check_room(directory, KEPT * one)
    if device.type == "cuda" and HELD * one <= limits.gpu:
        store = Store(device, **facts)
    elif directory is None or HELD * one <= limits.host:
        store = Store(torch.device("cpu"), pinned=device.type == "cuda", **facts)
    else:
        store = Store(torch.device("cpu"), directory=directory, **facts)
    log.info(
        "caches: %d x %.3g GB %s (limits: GPU %.3g GB, host %.3g GB)",
        *(HELD, one / GB, store, limits.gpu / GB, limits.host / GB),
    )
    return store


def _check_room(directory: Path, needed: int) -> None:
    """Refuse a disk that has no room for the caches and the state, beside those that already lie there."""
    there = sum(path.stat().st_size for path in directory.glob(f"*{SUFFIX}"))
    existing = next(path for path in (directory.absolute(), *directory.absolute().parents) if path.exists())
    free = shutil.disk_usage(existing).free
    if free + there < needed:
        raise InputError(
            f"{directory}: caches and resume state need {needed} bytes, {free} are free; free space, choose another "
            "--state, fewer samples, or a cache_dtype of half the size"
        )
    log.info("resume state: %.3g GB of %.3g GB free", needed / GB, free / GB)


def slices(count: int, size: int) -> list[slice]:
    """Return slices of ``size`` rows, the last perhaps of fewer, which cover ``count`` rows."""
    return [slice(start, min(start + size, count)) for start in range(0, count, size)]


def on(device: torch.device, rows: Tensor) -> Tensor:
    """Copy cached rows (n, ...) to a device; always a copy, because a module may begin with an in-place operation."""
    moved = rows.to(device, non_blocking=True)  # before the change of type: half the bytes, and only so without waiting
    return moved.to(torch.float32 if rows.is_floating_point() else rows.dtype, copy=moved is rows)


def sequences(x: Tensor, mask: Tensor) -> bool:
    """Whether ``x`` (N, ...) holds a vector for each token of ``mask``, bool (N, T)."""
    return x.ndim > 2 and x.shape[:2] == mask.shape


def gathered(x: Tensor, index: Tensor, length: int | None, device: torch.device) -> Tensor:
    """Return rows of a cache (N, ...) in the host's memory, cut to ``length`` tokens, laid out as they are there.

    A GPU gets them from page-locked memory and isn't waited for: PyTorch reuses that memory when they have arrived.
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
    """Draws batches of (input, target, mask) rows for one block; a GPU is never waited for.

    Attributes:
        quantized: (N, ...) input from the quantized predecessors.
        full: (N, ...) full-precision input, mixed in element by element with probability 1 - ``keep`` (QDrop).
        target: (N, ...) full-precision output.
        mask: (N, T) real tokens, or None.
        trim: whether a batch of sequences ends with the last real token of its longest row, which leaves a masked
            error as it is.
        size: rows per batch.
        keep: probability of an input element to be the quantized one.
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
        x, target = (self._rows(tensor, *batch).float() for tensor in (self.quantized, self.target))
        if self.keep < 1:
            full = self._rows(self.full, *batch).float()
            x = torch.lerp(full, x, keep_mask(x, self.keep, self.masks, x.dtype))
        return x, target, None if self.mask is None else self._rows(self.mask, *batch)

    def _drawn_ahead(self) -> Iterator[tuple[Tensor, Tensor, int | None]]:
        """Draw row numbers of many batches; return those of each on the CPU and on the device, and its length.

        No generator: it would refer to this object, which would keep its caches until cycles are searched for.
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

    def _rows(self, tensor: Tensor, host: Tensor, there: Tensor, length: int | None) -> Tensor:
        if tensor.device.type != self.masks.device.type:
            return gathered(tensor, host, length, self.masks.device)
        tensor = tensor if length is None else tensor[:, :length]
        order = order_of(tensor)
        return from_memory(tensor.permute(order)[there], order)
