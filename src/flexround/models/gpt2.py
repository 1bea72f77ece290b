"""Hugging Face's GPT-2 as blocks: one per decoder layer, attention and feed-forward together."""

import functools
from typing import Any

import torch
from torch import Tensor, nn

from flexround.models.blocks import Block, Site, identity
from flexround.models.gpt_neo import embed_words


def blocks(model: Any) -> list[Block]:
    """Cut a GPT-2 into its layers. The first block's input is int64 (N, 2, T): token ids, then token types.

    The types are ignored. The last block's output is the input of the final norm. The linears are ``Conv1D``, query,
    key and value one of them; each reads one quantized tensor (specification 5.2).

    Args:
        model: ``GPT2Model`` or one with a head.
    """
    base = model.base_model
    embed = functools.partial(embed_words, base)
    call = functools.partial(_call, model.config._attn_implementation)
    return [Block(f"h.{i}", layer, _sites(layer), identity if i else embed, call) for i, layer in enumerate(base.h)]


def causal_mask(attention: str, x: Tensor, mask: Tensor | None) -> Tensor | None:
    """Return what a layer needs to attend to earlier real tokens only, as the whole model would give it.

    Args:
        attention: the model's implementation of attention. All but ``eager`` are causal by themselves when there is
            no padding, and faster without a mask.
        x: hidden states (N, T, H).
        mask: bool (N, T), True for real tokens; None without padding.

    Returns:
        None, or (1 or N, 1, T, T): for ``eager`` what is added to the logits, of the type of ``x``; else bool, True
        where a token may look.
    """
    if mask is None and attention != "eager":
        return None
    length = x.shape[1]
    allowed = torch.ones(1, 1, length, length, dtype=torch.bool, device=x.device).tril()
    if mask is not None:
        allowed = allowed & mask[:, None, None, :]
    if attention != "eager":
        return allowed
    return torch.zeros_like(allowed, dtype=x.dtype).masked_fill(~allowed, torch.finfo(x.dtype).min)


def _call(attention: str, layer: nn.Module, x: Tensor, mask: Tensor | None) -> Tensor:
    """Run a layer on hidden states (N, T, H)."""
    return layer(x, attention_mask=causal_mask(attention, x, mask))


def _sites(layer: Any) -> tuple[Site, ...]:
    """Return the inputs of a layer's linears."""
    linears = (layer.attn.c_attn, layer.attn.c_proj, layer.mlp.c_fc, layer.mlp.c_proj)
    return tuple(Site(module, "input") for module in linears)
