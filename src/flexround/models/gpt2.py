"""Hugging Face's GPT-2 as blocks: one per decoder layer, attention and feed-forward together."""

import functools
from typing import Any

import torch
from torch import Tensor, nn

from flexround.models.blocks import Block, layer_blocks
from flexround.models.gpt_neo import embed_words


def blocks(model: Any) -> list[Block]:
    """Cut a ``GPT2Model``, or one with a head, into its layers.

    The first block's input is int64 (N, 2, T): token ids, then token types. The types are ignored. The last block's
    output is the input of the final norm. The linears are ``Conv1D``, query, key and value one of them; each reads one
    quantized tensor (specification 5.2).
    """
    base = model.base_model
    call = functools.partial(call_causal, model.config._attn_implementation)
    inputs = ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
    return layer_blocks("h", base.h, inputs, functools.partial(embed_words, base), call)


def causal_mask(attention: str, x: Tensor, mask: Tensor | None) -> Tensor | None:
    """Return what a layer needs to attend to earlier real tokens only, as the whole model would give it.

    Args:
        attention: the model's implementation. All but ``eager`` are causal without padding, and faster without a mask.
        x: hidden states (N, T, H).
        mask: bool (N, T), True for real tokens; None without padding.

    Returns:
        None, or (1 or N, 1, T, T): for ``eager`` added to the logits, of the type of ``x``; else bool, True to look.
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


def call_causal(attention: str, layer: nn.Module, x: Tensor, mask: Tensor | None) -> Tensor:
    """Run a layer on hidden states (N, T, H), with the mask that its attention needs (`causal_mask`)."""
    return layer(x, attention_mask=causal_mask(attention, x, mask))
