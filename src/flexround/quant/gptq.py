"""GPTQ (Frantar et al. 2022, algorithm 1): column by column, the error of rounding is put onto the columns to come."""

from collections.abc import Iterable

import torch
from torch import Tensor

from flexround.quant.grid import Grid, clip, nearest_codes
from flexround.quant.rounding import Axes, Rounding

COLUMNS = 128  # whose errors are put onto all later columns at once; no part of the result


class GPTQ(Rounding):
    """Nothing is learned; the codes follow from the second moments of the layer's inputs, H = X X^T.

    Options:
        damping: part of the mean of H's diagonal that is added to it.
        act_order: whether columns are taken by falling diagonal of H instead of as they lie.
    """

    needs_inputs = True
    found: Tensor

    def __init__(self, weight: Tensor, grid: Grid, axes: Axes, damping: float = 0.01, act_order: bool = False) -> None:
        super().__init__(weight, grid, axes)
        self.damping, self.act_order = damping, act_order
        self.register_buffer("found", nearest_codes(weight.detach(), grid), persistent=False)

    def fit(self, weight: Tensor, inputs: Iterable[Tensor]) -> None:
        """Find the codes of ``weight`` from ``inputs``, float32 (groups, n, features); see :meth:`Rounding.fit`.

        A layer that is never called has none: its codes stay those of round-to-nearest.

        Raises:
            ValueError: they hold NaN or Inf.
        """
        moments = second_moments(inputs)
        if moments is None:
            return
        groups = len(moments)
        step, low, high = (self._grouped(value, groups) for value in (self.grid.step, self.low, self.high))
        columns = self._grouped(weight, groups).double()
        codes = eliminated(columns, moments, step.double(), low, high, self.damping, self.act_order)
        self.found = self.axes.undo_matrix(codes.flatten(0, 1).to(weight), weight).contiguous()

    def _grouped(self, value: Tensor | float, groups: int) -> Tensor:
        """Return a weight, step or bound as (groups, Cout / groups, features or 1), or a number as (1, 1, 1)."""
        value = torch.as_tensor(value, device=self.found.device)
        if value.ndim == 0:
            return value.view(1, 1, 1)
        if value.numel() > value.shape[self.axes.output]:  # a step for each group of features, or the weight itself
            value = value.expand_as(self.found)
        return self.axes.matrix(value).unflatten(0, (groups, -1))

    def forward(self, weight: Tensor) -> Tensor:
        """Return the codes found, those of round-to-nearest before, times s1; shape of ``weight``, which isn't read."""
        return self.found * self.grid.step

    def codes(self, weight: Tensor) -> Tensor:
        return self.found


@torch.no_grad()
def second_moments(inputs: Iterable[Tensor]) -> Tensor | None:
    """Return X X^T over all rows of batches (groups, n, features), float64 (groups, features, features), or None.

    Layers that read the same tensors get the same ``inputs``, on which it is kept for them.

    Raises:
        ValueError: NaN or Inf in them.
    """
    kept: dict[str, Tensor | None] = getattr(inputs, "kept", {})
    if "moments" in kept:
        return kept["moments"]
    total: Tensor | None = None
    for rows in inputs:
        product = rows.mT.matmul(rows)
        total = product.double() if total is None else total.add_(product)
    if total is not None and not torch.isfinite(total).all():
        raise ValueError("the layer's inputs hold NaN or Inf")
    kept["moments"] = total
    return total


@torch.no_grad()
def eliminated(
    weight: Tensor, moments: Tensor, step: Tensor, low: Tensor, high: Tensor, damping: float, act_order: bool
) -> Tensor:
    """Return GPTQ's codes, float64 of the shape of ``weight``.

    Args:
        weight: float64 (groups, outputs, features).
        moments: H, float64 (groups, features, features).
        step, low, high: of the grid, (groups, outputs, 1 or features) or (1, 1, 1): that of the weight as it is given.
        damping, act_order: options of :class:`GPTQ`.
    """
    diagonal = moments.diagonal(dim1=1, dim2=2)
    dead = diagonal == 0  # a feature that is always 0 tells nothing of its column: it is rounded as zeros
    mean = diagonal.mean(1, keepdim=True)
    mean = torch.where(mean == 0, 1.0, mean)
    weight = weight.masked_fill(dead.unsqueeze(1), 0)
    damped = moments + torch.diag_embed(damping * mean + dead * mean)
    order = torch.arange(diagonal.shape[1], device=diagonal.device).expand_as(diagonal)  # as they lie
    if act_order:
        order = diagonal.argsort(stable=True, dim=1, descending=True)
    weight = weight.take_along_dim(order.unsqueeze(1), 2)
    damped = damped.take_along_dim(order.unsqueeze(1), 2).take_along_dim(order.unsqueeze(2), 1)
    grid = [each.take_along_dim(order.unsqueeze(1), 2) if each.shape[2] > 1 else each for each in (step, low, high)]
    codes = _by_columns(weight, inverse_root(damped), *(each.expand(*each.shape[:2], weight.shape[2]) for each in grid))
    return codes.take_along_dim(order.argsort(1).unsqueeze(1), 2)


def inverse_root(moments: Tensor) -> Tensor:
    """Return U, upper triangular, with U^T U = H^-1; float64 (groups, features, features) as ``moments``, H.

    Row i of U is, but for a factor, that of the inverse of H without its first i columns (Cholesky reformulation).
    """
    return torch.linalg.cholesky(torch.cholesky_inverse(torch.linalg.cholesky(moments)), upper=True)


def _by_columns(weight: Tensor, root: Tensor, step: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Return the codes of ``weight`` (groups, outputs, features); step and bounds are so, or (1, 1, features)."""
    codes, features = torch.empty_like(weight), weight.shape[2]
    for start in range(0, features, COLUMNS):
        stop = min(start + COLUMNS, features)
        errors = torch.empty_like(weight[:, :, start:stop])
        for column in range(start, stop):
            value, s1 = weight[:, :, column], step[:, :, column]
            code = clip((value / s1).round_(), low[:, :, column], high[:, :, column])
            codes[:, :, column] = code
            error = (value - code * s1) / root[:, column, column].unsqueeze(1)
            errors[:, :, column - start] = error
            weight[:, :, column + 1 : stop] -= error.unsqueeze(2) * root[:, column, None, column + 1 : stop]
        weight[:, :, stop:] -= errors @ root[:, start:stop, stop:]
    return codes
