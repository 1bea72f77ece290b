"""Hugging Face's LLaMA as blocks: one per decoder layer, attention and feed-forward together."""

import functools
from typing import Any

import torch
from torch import Tensor, nn

from flexround.errors import InputError
from flexround.models.blocks import Block, layer_blocks
from flexround.models.masks import causal_mask


def blocks(model: Any) -> list[Block]:
    """Cut a ``LlamaModel``, or one with a head, into its layers (`layer_blocks`).

    Gate and up share a quantized input, too. Padding must be at the end: positions count from the first token. Keys and
    values may be shared by groups of heads; InputError if the heads don't divide into such groups.
    """
    refuse_uneven_groups(model.config)
    base = model.base_model
    call = functools.partial(_call, model.config._attn_implementation, base.rotary_emb)
    inputs = ("self_attn", "self_attn.o_proj", "mlp", "mlp.down_proj")
    return layer_blocks("layers", base.layers, inputs, functools.partial(_embed, base), call)


def refuse_uneven_groups(config: Any) -> None:
    """Raise InputError for heads that don't divide into equal groups; transformers finds out in the first forward."""
    if config.num_attention_heads % config.num_key_value_heads:
        raise InputError(
            f"llama: num_attention_heads is {config.num_attention_heads}, no multiple of num_key_value_heads, "
            f"{config.num_key_value_heads}; correct the model's arguments"
        )


def _embed(base: Any, tokens: Tensor) -> Tensor:
    """Return hidden states (N, T, H) of token ids and types (N, 2, T)."""
    return base.embed_tokens(tokens[:, 0])


def _call(attention: str, rotary: nn.Module, layer: nn.Module, x: Tensor, mask: Tensor | None) -> Tensor:
    """Run a layer on hidden states (N, T, H); ``rotary`` gives the cosines and sines (1, T, head size) of positions."""
    turns = rotary(x, torch.arange(x.shape[1], device=x.device)[None])
    return layer(x, attention_mask=causal_mask(attention, x, mask), position_embeddings=turns)
