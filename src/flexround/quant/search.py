"""Initial step size: min-max, or a search that minimises mean |x - x_hat|^p (paper: p = 2; released code: 2.4)."""

from collections.abc import Iterator

import torch
from torch import Tensor

from flexround.quant import native
from flexround.quant.grid import MIN_STEP, Grid, Scheme, channel_range, code_range, grid_from_range, nearest_codes

CANDIDATES = 100  # ranges: the full range times 1/100 ... 100/100
COARSE = 4  # the search first tries every fourth candidate
NEAR, NEAR_PART = (0, -1, 1, -2, 2), 16  # and zero points shifted from the natural one by these sixteenths of all codes
PATTERN = (8, 4, 2, 1)  # then it moves by these amounts while the error falls
MARGIN = 1.001  # a range counts as worse beyond this factor, because float32 sums are inexact
CHUNK = 2**20  # weights searched at a time, in whole channels, so that they stay in the CPU's caches
PIECE = 2**28  # values of a tensor with one grid compared at a time, so that no full copy is needed


def initial_grid(x: Tensor, scheme: Scheme, method: str = "mse", p: float = 2.4) -> Grid:
    """Return the initial grid of a reconstruction.

    Args:
        x: float tensor, any shape and type; the search runs in float32 (|error|^2.4 underflows in half precision).
        scheme: bits, symmetry, channel axis.
        method: ``minmax``, or ``mse`` to search.
        p: exponent of the error.
    """
    x, axis = x.detach().float(), scheme.axis
    low, high = channel_range(x, axis)
    negatives, positives = bool(low.min() < 0), bool(high.max() > 0)
    if method == "minmax":
        return grid_from_range(low, high, scheme, negatives)
    if axis is None:
        return _Search(x, scheme, negatives, positives, p).best()
    parts = x.split(max(1, CHUNK * x.shape[axis] // x.numel()), axis)
    grids = [_Search(part, scheme, negatives, positives, p).best() for part in parts]
    step, zero_point = (torch.cat([getattr(grid, name) for grid in grids], axis) for name in ("step", "zero_point"))
    return Grid(step, zero_point, grids[0].qmin, grids[0].qmax)


def mean_error(x: Tensor, grid: Grid, axis: int | None, p: float) -> Tensor:
    """Return mean |x - x_hat|^p per tensor, shape (), or per channel, shape of the step."""
    if axis is None and x.numel() > PIECE:
        sums = [mean_error(part, grid, None, p).double() * part.numel() for part in x.flatten().split(PIECE)]
        return (torch.stack(sums).sum() / x.numel()).to(x.dtype)
    error = native.distance(x, grid.step, *grid.bounds)
    if error is None:
        error = nearest_codes(x, grid).mul_(grid.step).sub_(x).abs_()
    error = error.square_() if p == 2 else error.pow_(p)
    if axis is None:
        return error.mean()
    return error.mean([dim for dim in range(x.ndim) if dim != axis % x.ndim], keepdim=True)


class _Search:
    """A search over ranges, 1/100 to 100/100 of the full range, and zero points, separately for each channel of ``x``.

    The zero point is searched only in ``planar`` tensors, which are asymmetric and two-sided. ``x`` may be some
    channels of a tensor; ``negatives`` and ``positives`` describe the whole tensor.

    Attributes:
        index, zero_point, error: each channel's best candidate so far, shape of the step.
    """

    def __init__(self, x: Tensor, scheme: Scheme, negatives: bool, positives: bool, p: float) -> None:
        self.x, self.scheme, self.negatives, self.p = x, scheme, negatives, p
        self.levels = 2**scheme.bits - 1
        self.planar = not scheme.symmetric and negatives and positives
        low, high = channel_range(x, scheme.axis)
        self.low, self.high = low.clamp_max(0), high.clamp_min(0)  # also channels of one sign include 0
        self.index = torch.full_like(self.low, CANDIDATES)
        self.zero_point = grid_from_range(self.low, self.high, scheme, negatives).zero_point
        self.error = torch.full_like(self.low, torch.inf)

    def best(self) -> Grid:
        """Try every fourth range at zero points near the natural one, then improve the best by small moves."""
        natural, shift = self.zero_point, max(1, self.levels // NEAR_PART)
        for zero_point in [natural + near * shift for near in (NEAR if self.planar else [0])]:
            for index in range(CANDIDATES, 0, -COARSE):
                self._offer(torch.full_like(self.index, index), zero_point)
                if self._smaller_is_worse():
                    break
        for index_move, zero_point_move in self._moves():
            while self._offer(self.index + index_move, self.zero_point + zero_point_move):
                pass
        return self._grid(self.index, self.zero_point)

    def _moves(self) -> Iterator[tuple[int, int]]:
        """Yield moves of range and zero point, large moves first; zero points move in proportion to their number."""
        for size in PATTERN:
            if size <= COARSE:
                yield from ((size, 0), (-size, 0))
            if self.planar:
                shift = max(1, size * self.levels // 256)
                yield from ((0, shift), (0, -shift))

    def _offer(self, index: Tensor, zero_point: Tensor) -> bool:
        """Try a candidate and keep it in the channels that it improves; return whether any channel improved."""
        index, zero_point = index.clamp(1, CANDIDATES), zero_point.clamp(0, self.levels)
        grid = self._grid(index, zero_point)
        error = mean_error(self.x, grid, self.scheme.axis, self.p)
        self._clipping = error - (grid.step / 2) ** self.p
        better = error < self.error
        self.error = torch.where(better, error, self.error)
        self.index = torch.where(better, index, self.index)
        self.zero_point = torch.where(better, zero_point, self.zero_point)
        return bool(better.any())

    def _smaller_is_worse(self) -> bool:
        """Return whether no smaller range with the last candidate's zero point can win in any channel.

        Errors within the bounds are at most half a step. The rest is clipping, which grows as the range shrinks.
        """
        return bool((self._clipping > MARGIN * self.error).all())

    def _grid(self, index: Tensor, zero_point: Tensor) -> Grid:
        """Return the grid of one candidate per channel."""
        part = index / CANDIDATES
        if not self.planar:
            return grid_from_range(self.low * part, self.high * part, self.scheme, self.negatives)
        step = ((self.high - self.low) * part / self.levels).clamp_min(MIN_STEP)
        return Grid(step, zero_point, *code_range(self.scheme, self.negatives))
