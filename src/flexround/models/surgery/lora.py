"""Adapters of microsoft/LoRA's release merged into GPT-2: low-rank changes of query and value (specification 8)."""

import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from flexround.errors import InputError
from flexround.models.checkpoints import read_foreign

ALPHA = 32.0  # the release was trained with it
_KEY = re.compile(r"(?:.+\.)?h\.(\d+)\.attn\.c_attn\.lora_([AB])")


@torch.no_grad()
def merge_checkpoint(model: Any, path: Path) -> None:
    """Add a released adapter of rank r, ALPHA / r times, to the ``c_attn`` weights of a GPT-2 with its base weights.

    Args:
        model: Hugging Face's ``GPT2Model`` or one with a head; not merged with any adapter before.
        path: a ``.pt`` with A (2 r, d) and B (2 d, r) of every layer under ``model_state_dict``.

    Raises:
        InputError: the model is merged already, or the file is damaged, no adapter, or one of another model; the model
            is then as it was before.
    """
    if before := getattr(model, "merged_adapter", None):
        raise InputError(f"{path}: the model is merged with {before} already; load its base weights again first")
    layers = [block.attn.c_attn for block in model.base_model.h]
    state = read_foreign(path)
    if not any("lora_" in key for key in state):
        raise InputError(f"{path}: no lora_ keys; it is not an adapter, load it as a checkpoint")
    factors = _factors(state, len(layers), path)
    rank = _common_rank(factors, layers[0].nx, path)
    for layer, (a, b) in zip(layers, factors, strict=True):
        change = ALPHA / rank * _weight_change(a.float(), b.float())
        layer.weight.copy_(layer.weight.float() + change.to(layer.weight.device))
    model.merged_adapter = str(path)  # a plain attribute: copies of the model know it too, state dicts don't


def _weight_change(a: Tensor, b: Tensor) -> Tensor:
    """Return (d, 3 d), columns of query, key (all 0) and value, for A (2 r, d) and B (2 d, r), rows of query first."""
    rank, width = b.shape[1], a.shape[1]
    query, value = b[:width] @ a[:rank], b[width:] @ a[rank:]
    return torch.cat([query, torch.zeros_like(query), value]).T


def _factors(state: dict[str, Tensor], layers: int, path: Path) -> list[tuple[Tensor, Tensor]]:
    """Return (A, B) of every layer in order."""
    halves: dict[tuple[int, str], Tensor] = {}
    for key, value in state.items():
        match = _KEY.fullmatch(key)
        if match is None or int(match[1]) >= layers:
            raise InputError(f"{path}: {key} is not in this GPT-2 of {layers} layers; take the adapter of this model")
        halves[int(match[1]), match[2]] = value
    if missing := [f"h.{i}.attn.c_attn.lora_{name}" for i in range(layers) for name in "AB" if (i, name) not in halves]:
        raise InputError(f"{path}: {missing[0]} is missing; this GPT-2 has {layers} layers, take its adapter")
    return [(halves[i, "A"], halves[i, "B"]) for i in range(layers)]


def _common_rank(factors: list[tuple[Tensor, Tensor]], width: int, path: Path) -> int:
    """Return the rank of all layers, after a look at shapes and values."""
    rank = factors[0][1].shape[-1]
    for i, (a, b) in enumerate(factors):
        if a.shape != (2 * rank, width) or b.shape != (2 * width, rank):
            raise InputError(
                f"{path}: layer h.{i} has A {tuple(a.shape)} and B {tuple(b.shape)}; a model of width {width} and rank "
                f"{rank}, that of the first layer, needs {(2 * rank, width)} and {(2 * width, rank)}; take its adapter"
            )
        if not (a.isfinite().all() and b.isfinite().all()):
            raise InputError(f"{path}: layer h.{i} holds NaN or Inf; the file is damaged, fetch it again")
    return rank
