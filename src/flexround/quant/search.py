"""Initial step size: min-max, or the search that minimises mean |x - x_hat|^p (paper: p = 2; released code: 2.4)."""

from collections.abc import Iterator

import torch
from torch import Tensor

from flexround.quant.grid import Grid, Scheme, channel_range, clip, code_range, grid_from_range

CANDIDATES = 100  # ranges tried by the exact search: the full range times 1/100 ... 100/100
COARSE = 4  # the fast search first tries every fourth of them
NEAR, NEAR_PART = (0, -1, 1, -2, 2), 16  # with zero points off the natural one by these sixteenths of all codes
PATTERN = (8, 4, 2, 1)  # then moves by these amounts as long as that helps
MARGIN = 1.001  # of float32 sums, before a range counts as worse
CHUNK = 2**20  # weights searched at a time, of whole channels: the passes over them stay in the caches
PIECE = 2**28  # values of a tensor with one grid that are compared at a time: more would take its memory once again


def initial_grid(x: Tensor, scheme: Scheme, method: str = "mse", p: float = 2.4) -> Grid:
    """Return the grid a reconstruction starts from.

    Args:
        x: float tensor, any shape; searched in float32 whatever its type (|error|^2.4 underflows in half precision).
        scheme: bits, symmetry, channel axis.
        method: ``minmax``, ``mse`` (fast search) or ``mse-exact`` (exhaustive, for small tensors and tests).
        p: exponent of the error.

    Raises:
        ValueError: unknown method, empty tensor, or NaN / Inf in ``x``.
    """
    if x.numel() == 0:
        raise ValueError("an empty tensor has no range")
    if not torch.isfinite(x).all():
        raise ValueError(f"{int((~torch.isfinite(x)).sum())} of {x.numel()} values are NaN or Inf")
    x = x.detach().float()
    low, high = channel_range(x, scheme.axis)
    negatives, positives = bool(low.min() < 0), bool(high.max() > 0)
    if method == "minmax":
        return grid_from_range(low, high, scheme, negatives)
    search = {"mse": _fast, "mse-exact": _exact}.get(method)
    if search is None:
        raise ValueError(f"method {method!r}: choose minmax, mse or mse-exact")
    grids = []
    for part in _parts(x, scheme.axis):
        candidates = _Candidates(*channel_range(part, scheme.axis), scheme, negatives, positives)
        grids.append(search(part, candidates, p))
    if len(grids) == 1:
        return grids[0]
    steps, zero_points = ([getattr(grid, name) for grid in grids] for name in ("step", "zero_point"))
    axis = scheme.axis or 0
    return Grid(torch.cat(steps, axis), torch.cat(zero_points, axis), grids[0].qmin, grids[0].qmax)


def _parts(x: Tensor, axis: int | None) -> tuple[Tensor, ...]:
    """Split a tensor with one grid per channel into groups of channels; each channel's search is its own."""
    if axis is None:
        return (x,)
    return x.split(max(1, CHUNK * x.shape[axis] // x.numel()), axis)


def mean_error(x: Tensor, grid: Grid, axis: int | None, p: float) -> Tensor:
    """Return mean |x - x_hat|^p per tensor, shape (), or per channel, shape of the step."""
    if axis is None and x.numel() > PIECE:
        sums = [mean_error(part, grid, None, p).double() * part.numel() for part in x.flatten().split(PIECE)]
        return (torch.stack(sums).sum() / x.numel()).to(x.dtype)
    low, high = grid.bounds
    error = (x / grid.step).round_()
    clip(error, low, high, out=error).mul_(grid.step).sub_(x)
    error = error.square_() if p == 2 else error.abs_().pow_(p)
    if axis is None:
        return error.mean()
    return error.mean([dim for dim in range(x.ndim) if dim != axis % x.ndim], keepdim=True)


class _Candidates:
    """The two coordinates searched over, each a tensor shaped like the step: range index 1..100 and zero point.

    One-sided and symmetric tensors have one coordinate (the range); asymmetric two-sided ones have both. Whether there
    are negatives and positives is of the whole tensor, whichever of its channels are searched here.
    """

    def __init__(self, low: Tensor, high: Tensor, scheme: Scheme, negatives: bool, positives: bool) -> None:
        self.low, self.high, self.scheme, self.negatives = low, high, scheme, negatives
        self.levels = 2**scheme.bits - 1
        self.planar = not scheme.symmetric and negatives and positives

    def natural_zero_point(self) -> Tensor:
        """The zero point of the min-max grid, from which the fast search starts."""
        return grid_from_range(self.low, self.high, self.scheme, self.negatives).zero_point

    def grid(self, index: Tensor, zero_point: Tensor) -> Grid:
        """Return the grid of one candidate per channel."""
        if not self.planar:
            part = index / CANDIDATES
            return grid_from_range(self.low * part, self.high * part, self.scheme, self.negatives)
        step = ((self.high - self.low) * (index / CANDIDATES) / self.levels).clamp_min(1e-8)
        return Grid(step, zero_point, *code_range(self.scheme, self.negatives))


class _Best:
    """The best candidate so far, channel by channel."""

    def __init__(self, x: Tensor, candidates: _Candidates, p: float) -> None:
        self.x, self.candidates, self.p = x, candidates, p
        self.index = torch.full_like(candidates.low, CANDIDATES)
        self.zero_point = candidates.natural_zero_point()
        self.error = torch.full_like(candidates.low, torch.inf)
        self.clipped = torch.zeros_like(candidates.low)  # what clipping alone costs the last candidate, from below

    def offer(self, index: Tensor, zero_point: Tensor) -> bool:
        """Try a candidate; keep it in the channels where it is better. Returns whether it was anywhere."""
        index = index.clamp(1, CANDIDATES)
        zero_point = zero_point.clamp(0, self.candidates.levels)
        grid = self.candidates.grid(index, zero_point)
        error = mean_error(self.x, grid, self.candidates.scheme.axis, self.p)
        self.clipped = error - (grid.step / 2) ** self.p
        better = error < self.error
        self.error = torch.where(better, error, self.error)
        self.index = torch.where(better, index, self.index)
        self.zero_point = torch.where(better, zero_point, self.zero_point)
        return bool(better.any())

    def smaller_is_worse(self) -> bool:
        """Whether no range within the last candidate's, zero point unchanged, can win in any channel.

        Within the bounds an error is at most half a step; the rest is clipping, which only grows as the range shrinks.
        """
        return bool((self.clipped > MARGIN * self.error).all())

    def grid(self) -> Grid:
        """Return the grid of the best candidate."""
        return self.candidates.grid(self.index, self.zero_point)


def _exact(x: Tensor, candidates: _Candidates, p: float) -> Grid:
    """Try 100 ranges, and for asymmetric two-sided tensors all 2^b zero points with each: the oracle."""
    best = _Best(x, candidates, p)
    zero_points = range(candidates.levels + 1) if candidates.planar else [0]
    for index in range(1, CANDIDATES + 1):
        for zero_point in zero_points:
            best.offer(torch.full_like(best.index, index), torch.full_like(best.zero_point, zero_point))
    return best.grid()


def _fast(x: Tensor, candidates: _Candidates, p: float) -> Grid:
    """Coarse-to-fine: every fourth range at zero points near the natural one, then a pattern search around the best."""
    best = _Best(x, candidates, p)
    natural = best.zero_point
    shift = max(1, candidates.levels // NEAR_PART)
    for zero_point in [natural + near * shift for near in (NEAR if candidates.planar else [0])]:
        for index in range(CANDIDATES, 0, -COARSE):
            best.offer(torch.full_like(best.index, index), zero_point)
            if best.smaller_is_worse():
                break
    for size in PATTERN:
        for index_move, zero_point_move in _moves(size, candidates):
            while best.offer(best.index + index_move, best.zero_point + zero_point_move):
                pass
    return best.grid()


def _moves(size: int, candidates: _Candidates) -> Iterator[tuple[int, int]]:
    """Yield the moves (range, zero point) of one pattern size; zero points move in proportion to their count."""
    if size <= COARSE:
        yield from ((size, 0), (-size, 0))
    if candidates.planar:
        shift = max(1, size * candidates.levels // 256)
        yield from ((0, shift), (0, -shift))
