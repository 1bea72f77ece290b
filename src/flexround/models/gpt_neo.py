"""Hugging Face's GPT-Neo as blocks: one per decoder layer, attention and feed-forward together."""

import contextlib
import functools
from typing import Any

import torch
from torch import Tensor, nn
from transformers.models.gpt_neo import modeling_gpt_neo

from flexround.models.blocks import Block, layer_blocks
from flexround.models.masks import bias


class GPTNeoSelfAttention(modeling_gpt_neo.GPTNeoSelfAttention):
    """Computes its logits in float32 under autocast, too: they are not scaled down, and bfloat16 is coarse for them."""

    def _attn(self, query: Tensor, *others: Any) -> Any:
        kind = query.device.type  # there is none for tensors without values
        off = torch.autocast(kind, enabled=False) if torch.amp.is_autocast_available(kind) else contextlib.nullcontext()
        with off:
            return super()._attn(query, *others)


def exact(model: nn.Module) -> nn.Module:
    """Give the layers of a GPT-Neo the attention above, and return it."""
    for module in model.modules():
        if type(module) is modeling_gpt_neo.GPTNeoSelfAttention:
            module.__class__ = GPTNeoSelfAttention
    return model


def blocks(model: Any) -> list[Block]:
    """Cut a ``GPTNeoModel``, or one with a head, into its layers (`layer_blocks`).

    Local and global attention need no care here: each layer keeps its own causal window.
    """
    base = model.base_model
    inputs = ("attn.attention", "attn.attention.out_proj", "mlp.c_fc", "mlp.c_proj")
    return layer_blocks("h", base.h, inputs, functools.partial(embed_words, base), _call)


def embed_words(base: Any, tokens: Tensor) -> Tensor:
    """Return hidden states (N, T, H) of token ids and types (N, 2, T)."""
    positions = torch.arange(tokens.shape[-1], device=tokens.device)
    return base.drop(base.wte(tokens[:, 0]) + base.wpe(positions))


def _call(layer: nn.Module, x: Tensor, mask: Tensor | None) -> Tensor:
    """Run a layer on hidden states (N, T, H). The logits are float32 whatever the type of ``x``."""
    return layer(x, attention_mask=None if mask is None else bias(mask[:, None, None], torch.float32))[0]
