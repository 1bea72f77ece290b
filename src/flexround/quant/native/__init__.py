"""The formulas of ``quant/functions.py`` for float32 on a CPU, one pass over memory each way (``kernels.cpp``).

Each class has ``value`` and ``gradients`` of the formula of its name; a weight is a matrix there, a row for each step.
"""

import functools
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._prims_common import is_non_overlapping_and_dense_or_false as is_dense

from flexround.quant.grid import Bound

log = logging.getLogger(__name__)
Shapes = Sequence[torch.Size | None]


@functools.cache
def built() -> bool:
    """Say whether the kernels can be used, after loading them; if not, log it in one line."""
    try:
        torch.ops.load_library(next(Path(__file__).parent.glob("*.so")))
    except (StopIteration, OSError) as error:
        log.warning("no native kernels (%s): fake quantization is several times slower", error or "not built")
        return False
    return True


def fits(*inputs: Any) -> bool:
    """Say whether all tensors are of the type and device that there are kernels for."""
    alike = all(x.dtype == torch.float32 and x.device.type == "cpu" for x in inputs if isinstance(x, Tensor))
    return alike and built()


class StepQuantize:
    """x̂ = Δ · clamp(⌊x / Δ⌉) where it is kept."""

    @staticmethod
    def fits(x: Tensor, *others: Any) -> bool:
        """Say whether there is a kernel for such inputs."""
        return fits(x, *others)

    @staticmethod
    def value(needs: object, x: Tensor, step: Tensor, low: float, high: float, kept: Any) -> tuple[Any, ...]:
        """Return x̂, shape of ``x``, and what the gradients need; ``kept`` is an ``activation.Kept`` or None."""
        given = x if is_dense(x) else x.contiguous(), step, low, high, *(kept or (None, 1, 0))
        return torch.ops.flexround.step_quantize(*given), *given

    @staticmethod
    def gradients(grad: Tensor, needs: object, shapes: object, x: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
        """Return the gradients of x, of its shape, and of step, shape ()."""
        grad = grad if grad.stride() == x.stride() else torch.empty_like(x).copy_(grad)
        return torch.ops.flexround.step_quantize_backward(grad, x, *others)


class DivideRound:
    """Ŵ = s1 · clamp(⌊W / (s1 ⊙ S2 ⊙ s3 ⊙ s4)⌉)."""

    @staticmethod
    def fits(weight: Tensor, start: Tensor, d1: Tensor, d2: object, d3: Tensor | None, *others: Any) -> bool:
        """Say whether there is a kernel for such inputs: s1 and s3 have a number for each row of the weight."""
        return fits(weight, *others) and _by_rows(weight, start, d3)

    @staticmethod
    def value(
        needs: Sequence[bool],
        weight: Tensor,
        start: Tensor,
        d1: Tensor,
        d2: Tensor | None,
        d3: Tensor | None,
        d4: Tensor | None,
        low: Bound,
        high: Bound,
    ) -> tuple[Any, ...]:
        """Return Ŵ, shape of ``weight``, and what the gradients need."""
        s1, divisor = scales(start, d1, d2, d3, d4)
        divisor = divisor.expand_as(weight)
        given = _matrix(weight, start), _matrix(divisor, start), _grid(weight, s1, low, high)
        return torch.ops.flexround.divide_round(*given).view(weight.shape), *given

    @staticmethod
    def gradients(
        grad: Tensor, needs: Sequence[bool], shapes: Shapes, weight: Tensor, *others: Tensor
    ) -> tuple[Tensor | None, ...]:
        """Return the gradients of weight, start (none), d1, d2, d3 and d4, each of its own shape."""
        _, of_start, shape1, shape2, shape3, shape4, *_ = shapes
        given = grad.reshape(weight.shape), weight, *others, needs[0]
        grad_d, grad_w, sums = torch.ops.flexround.divide_round_backward(*given)
        grad_d, rows = grad_d.view(grad.shape), _row_shape(grad, of_start)
        sums, products = (each.view(rows) for each in sums)
        grad_d4 = None
        if shape4 is not None:  # a convolution's: what is left after a sum over kernels is small
            grad_d4 = grad_d.sum((2, 3), keepdim=True).sum_to_size(shape4)
        return (
            grad_w.view(grad.shape) if needs[0] else None,
            None,
            (sums + products).sum_to_size(shape1) if needs[2] else None,
            None if shape2 is None else grad_d,
            None if shape3 is None else sums.sum_to_size(shape3),
            grad_d4,
        )


class RectifiedSigmoidRound:
    """Ŵ = s1 · clamp(⌊W / s1⌋ + h(α))."""

    @staticmethod
    def fits(alpha: Tensor, floor: Tensor, step: Tensor, *others: Any) -> bool:
        """Say whether there is a kernel for such inputs: s1 has a number for each row of the weight."""
        return fits(alpha, floor, step) and _by_rows(alpha, step)

    @staticmethod
    def value(needs: object, alpha: Tensor, floor: Tensor, step: Tensor, low: Bound, high: Bound) -> tuple[Any, ...]:
        """Return Ŵ, shape of ``alpha``, and what the gradient needs."""
        given = _matrix(alpha, step).sigmoid(), _matrix(floor, step), _grid(alpha, step, low, high)
        return torch.ops.flexround.sigmoid_round(*given, None).view(alpha.shape), *given

    @staticmethod
    def gradients(grad: Tensor, needs: object, shapes: object, *given: Tensor) -> tuple[Tensor]:
        """Return the gradient of alpha, of its shape."""
        found = torch.ops.flexround.sigmoid_round(*given, grad.reshape(given[0].shape))
        return (found.view(grad.shape),)


def scales(start: Tensor, d1: Tensor, d2: Tensor | None, d3: Tensor | None, d4: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return s1 and s1 ⊙ S2 ⊙ s3 ⊙ s4 from the initial s1 and the logarithms, shapes as ``DivideRound`` has them."""
    divisor = s1 = start * d1.exp()
    for small in (d3, d4):  # first, because they are small
        divisor = divisor if small is None else divisor * small.exp()
    return s1, divisor if d2 is None else d2.exp().mul_(divisor)


def _row_shape(weight: Tensor, step: torch.Size | None) -> torch.Size:
    """Return the shape of a number for each row: an output channel, or one of its groups if they have steps."""
    rows = 2 if step is not None and len(step) > 2 and step[1] > 1 else 1
    return torch.Size([*weight.shape[:rows], *[1] * (weight.ndim - rows)])


def _by_rows(weight: Tensor, step: Tensor, other: Tensor | None = None) -> bool:
    """Say whether a step and another tensor, of any shapes, have one number for each row of a weight."""
    shape = _row_shape(weight, step.shape)
    given = [x for x in (step, other) if x is not None]
    return all(
        x.ndim in (0, len(shape)) and all(a in (1, b) for a, b in zip(x.shape, shape, strict=False)) for x in given
    )


def _matrix(x: Tensor, step: Tensor) -> Tensor:
    """Return a tensor of the shape of a weight as a matrix (R, K) without gaps."""
    return x.reshape(_row_shape(x, step.shape).numel(), -1).contiguous()


def _grid(weight: Tensor, step: Tensor, low: Bound, high: Bound) -> Tensor:
    """Return s1 and the bounds of each row, (3, R)."""
    shape = _row_shape(weight, step.shape)
    return torch.stack([torch.as_tensor(each, dtype=step.dtype).expand(shape).flatten() for each in (step, low, high)])
