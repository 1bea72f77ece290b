"""GPTQ (Frantar et al. 2022, algorithm 1): each column's rounding error is compensated in later columns."""

from collections.abc import Iterable

import torch
from torch import Tensor

from flexround.quant.grid import Grid, clip, nearest_codes
from flexround.quant.rounding import Axes, Rounding

COLUMNS = 128  # batch size of the updates of later columns; does not change the result


class GPTQ(Rounding):
    """Computes the codes from the second moments of the layer's inputs, H = X X^T, without learning.

    Options:
        damping: the fraction of the mean of H's diagonal that is added to the diagonal.
        act_order: whether columns are rounded by descending diagonal of H instead of in their own order.
    """

    needs_inputs = True
    found: Tensor

    def __init__(self, weight: Tensor, grid: Grid, axes: Axes, damping: float = 0.01, act_order: bool = False) -> None:
        super().__init__(weight, grid, axes)
        self.damping, self.act_order = damping, act_order
        self.register_buffer("found", nearest_codes(weight.detach(), grid), persistent=False)

    def fit(self, weight: Tensor, inputs: Iterable[Tensor]) -> None:
        """Find the codes of ``weight`` from ``inputs``, float32 (groups, n, features); see :meth:`Rounding.fit`.

        A layer that is never called has no inputs and keeps the codes of round-to-nearest.
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
        if value.numel() > value.shape[self.axes.output]:  # one step per group of features, or the weight itself
            value = value.expand_as(self.found)
        return self.axes.matrix(value).unflatten(0, (groups, -1))

    def forward(self, weight: Tensor) -> Tensor:
        """Return the fitted codes times s1, shape of ``weight``; before ``fit``, the codes are round-to-nearest's."""
        return self.found * self.grid.step

    def codes(self, weight: Tensor) -> Tensor:
        return self.found


@torch.no_grad()
def second_moments(inputs: Iterable[Tensor]) -> Tensor | None:
    """Return X X^T over all rows of batches (groups, n, features), float64 (groups, features, features), or None.

    The result is stored on ``inputs``, which all layers that read the same tensors share. None: there are no inputs.
    """
    kept: dict[str, Tensor | None] = getattr(inputs, "kept", {})
    if "moments" in kept:
        return kept["moments"]
    total: Tensor | None = None
    for rows in inputs:
        product = rows.mT.matmul(rows)
        total = product.double() if total is None else total.add_(product)
    kept["moments"] = total
    return total


@torch.no_grad()
def eliminated(
    weight: Tensor, moments: Tensor, step: Tensor, low: Tensor, high: Tensor, damping: float, act_order: bool
) -> Tensor:
    """Return GPTQ's codes, float64, shape of ``weight``.

    Args:
        weight: float64 (groups, outputs, features).
        moments: H, float64 (groups, features, features).
        step, low, high: the grid of the weight, (groups, outputs, 1 or features) or (1, 1, 1).
        damping, act_order: options of :class:`GPTQ`.
    """
    diagonal = moments.diagonal(dim1=1, dim2=2)
    dead = diagonal == 0  # features that are always 0 say nothing about their columns, whose codes become 0
    mean = diagonal.mean(1, keepdim=True)
    mean = torch.where(mean == 0, 1.0, mean)
    weight = weight.masked_fill(dead.unsqueeze(1), 0)
    damped = moments + torch.diag_embed(damping * mean + dead * mean)
    order = torch.arange(diagonal.shape[1], device=diagonal.device).expand_as(diagonal)  # own order
    if act_order:
        order = diagonal.argsort(stable=True, dim=1, descending=True)
    weight = weight.take_along_dim(order.unsqueeze(1), 2)
    damped = damped.take_along_dim(order.unsqueeze(1), 2).take_along_dim(order.unsqueeze(2), 1)
    grid = [each.take_along_dim(order.unsqueeze(1), 2) if each.shape[2] > 1 else each for each in (step, low, high)]
    codes = _by_columns(weight, inverse_root(damped), *(each.expand(*each.shape[:2], weight.shape[2]) for each in grid))
    return codes.take_along_dim(order.argsort(1).unsqueeze(1), 2)


def inverse_root(moments: Tensor) -> Tensor:
    """Return the upper triangular U with U^T U = H^-1; float64 (groups, features, features) like ``moments``, H.

    Up to a factor, row i of U is a row of the inverse of H without its first i columns (Cholesky reformulation).
    """
    return torch.linalg.cholesky(torch.cholesky_inverse(torch.linalg.cholesky(moments)), upper=True)


def _by_columns(weight: Tensor, root: Tensor, step: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Return the codes of ``weight`` (groups, outputs, features); step and bounds have this or (1, 1, features)."""
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
