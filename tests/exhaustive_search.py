"""The grid of least error by exhaustive search: the reference for the suite's step search."""

import torch
from torch import Tensor

RANGES = 100  # the full range times 1/100 ... 100/100


def exhaustive(rows: Tensor, bits: int, symmetric: bool, p: float) -> tuple[Tensor, Tensor]:
    """Return the best step of each row (C, N) and its mean |error|^p, float64 (C,), among all ranges and zero points.

    Each row has its own grid; whether the grids are signed depends on all rows.
    """
    rows, levels = rows.double().unsqueeze(1), 2**bits - 1
    low, high = rows.amin((1, 2)).clamp_max(0), rows.amax((1, 2)).clamp_min(0)
    signed = bool((low < 0).any())
    full = 2 * torch.maximum(-low, high) if symmetric and signed else high - low
    zeros = torch.arange(levels + 1) if signed and not symmetric else torch.tensor([2 ** (bits - 1) * signed])
    steps = full * torch.arange(1, RANGES + 1).unsqueeze(1) / RANGES / levels
    errors = []
    for step in steps.unsqueeze(-1).unsqueeze(-1):
        codes = (rows / step).round()
        codes = codes.maximum(-zeros.unsqueeze(1)).minimum(levels - zeros.unsqueeze(1))  # (C, zero points, N)
        errors.append(((codes * step - rows).abs() ** p).mean(2).amin(1))
    least, index = torch.stack(errors).min(0)
    return steps.gather(0, index.unsqueeze(0)).squeeze(0), least
