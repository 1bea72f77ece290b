"""Adapters of microsoft/LoRA's release merged into GPT-2: low-rank changes of query and value (specification 8)."""

import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from flexround.errors import InputError
from flexround.models.weights import read_foreign

ALPHA = 32.0  # the release was trained with it
_KEY = re.compile(r"(?:.+\.)?h\.(\d+)\.attn\.c_attn\.lora_([AB])")


@torch.no_grad()
def merge_checkpoint(model: Any, path: Path) -> None:
    """Add a released adapter of rank r, ALPHA / r times, to the ``c_attn`` weights of a GPT-2 with its base weights.

    Args:
        model: Hugging Face's ``GPT2Model`` or one with a head; not merged with any adapter before.
        path: a ``.pt`` with A (2 r, d) and B (2 d, r) of every layer under ``model_state_dict``.

    Raises:
        InputError: no adapter of a GPT-2 with so many layers.
    """
    layers = [block.attn.c_attn for block in model.base_model.h]
    found = {match.groups(): value for key, value in read_foreign(path).items() if (match := _KEY.fullmatch(key))}
    if found.keys() != {(str(i), name) for i in range(len(layers)) for name in "AB"}:
        raise InputError(f"{path}: not an adapter of this GPT-2 with {len(layers)} layers; take the one of this model")
    for i, layer in enumerate(layers):
        a, b = found[str(i), "A"].float(), found[str(i), "B"].float()
        change = ALPHA / b.shape[1] * _weight_change(a, b)
        layer.weight.copy_(layer.weight.float() + change.to(layer.weight.device))


def _weight_change(a: Tensor, b: Tensor) -> Tensor:
    """Return (d, 3 d), columns of query, key (all 0) and value, for A (2 r, d) and B (2 d, r), rows of query first."""
    rank, width = b.shape[1], a.shape[1]
    query, value = b[:width] @ a[:rank], b[width:] @ a[rank:]
    return torch.cat([query, torch.zeros_like(query), value]).T
