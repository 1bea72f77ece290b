"""The formulas of ``quant/functions.py`` for float32 on a CPU, one pass over memory each way (``kernels.cpp``).

Each function returns the value of its formula, differentiable, or None if there is no kernel for the inputs.
"""

import functools
import logging
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from flexround.quant.grid import Bound

log = logging.getLogger(__name__)


@functools.cache
def built() -> bool:
    """Say whether the kernels can be used, after loading them; if not, log it in one line."""
    try:
        torch.ops.load_library(next(Path(__file__).parent.glob("*.so")))
    except (StopIteration, OSError) as error:
        log.warning("no native kernels (%s): fake quantization is several times slower", error or "not built")
        return False
    return True


def fits(*inputs: Tensor) -> bool:
    """Say whether all are of the type and device that there are kernels for; compilers trace the plain formulas."""
    alike = all(x.dtype == torch.float32 and x.device.type == "cpu" for x in inputs)
    return alike and not torch.compiler.is_compiling() and built()


def step_quantize(x: Tensor, step: Tensor, low: float, high: float, kept: Any) -> Tensor | None:
    """Return x̂, shape of ``x``; ``kept`` is an ``activation.Kept`` or None."""
    if fits(x, step):
        return torch.ops.flexround.step_quantize(x, step, low, high, *(kept or (None, 1, 0)))
    return None


def divide_round(
    weight: Tensor,
    start: Tensor,
    d1: Tensor,
    d2: Tensor | None,
    d3: Tensor | None,
    d4: Tensor | None,
    low: Bound,
    high: Bound,
) -> Tensor | None:
    """Return Ŵ, shape of ``weight``; s1 and s3 have a number for each output channel, or for each of its groups."""
    if fits(weight, d1) and _by_rows(start, d3):
        return torch.ops.flexround.divide_round(weight, start, d1, d2, d3, d4, _tensor(low), _tensor(high))
    return None


def sigmoid_round(alpha: Tensor, floor: Tensor, step: Tensor, low: Bound, high: Bound) -> Tensor | None:
    """Return Ŵ, shape of ``alpha``; s1 has a number for each output channel, or for each of its groups."""
    if fits(alpha, step) and _by_rows(step):
        return torch.ops.flexround.sigmoid_round(alpha, floor, step, _tensor(low), _tensor(high))
    return None


def rounding_regularizer(alpha: Tensor, beta: float) -> Tensor | None:
    """Return the sum, shape ()."""
    return torch.ops.flexround.rounding_regularizer(alpha, beta) if fits(alpha) else None


def _tensor(bound: Bound) -> Tensor:
    return bound if isinstance(bound, Tensor) else torch.tensor(bound)


def _by_rows(step: Tensor, other: Tensor | None = None) -> bool:
    """Say whether a step and another tensor have one number, or one for each channel, or for each of its groups."""
    rows = 2 if step.ndim > 2 and step.shape[1] > 1 else 1
    return all(x is None or x.numel() in (1, x.shape[:rows].numel()) for x in (step, other))
