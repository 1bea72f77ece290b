"""Hugging Face's OPT as blocks: one per decoder layer, attention and feed-forward together."""

import functools
from typing import Any

import torch
from torch import Tensor

from flexround.errors import InputError
from flexround.models.blocks import Block, layer_blocks
from flexround.models.masks import call_causal


def blocks(model: Any) -> list[Block]:
    """Cut an ``OPTModel``, or one with a head, into its layers (`layer_blocks`).

    The post-norm variant has no final norm. Padding must be at the end: OPT counts positions from the first real token,
    here from the first token. InputError for projections around the layers.
    """
    refuse_projections(model.config)
    base = model.base_model.decoder
    call = functools.partial(call_causal, model.config._attn_implementation)
    inputs = ("self_attn", "self_attn.out_proj", "fc1", "fc2")
    return layer_blocks("layers", base.layers, inputs, functools.partial(_embed, base), call)


def refuse_projections(config: Any) -> None:
    """Raise InputError for the variant of OPT-350M: linears outside all layers, of which the paper says nothing."""
    if config.word_embed_proj_dim != config.hidden_size:
        raise InputError(
            f"opt: word_embed_proj_dim is {config.word_embed_proj_dim}, hidden_size {config.hidden_size}: the linears "
            "between embeddings and layers (OPT-350M) are in no block; take OPT-125M, 1.3B or 2.7B"
        )


def _embed(base: Any, tokens: Tensor) -> Tensor:
    """Return hidden states (N, T, H) of token ids and types (N, 2, T)."""
    ids = tokens[:, 0]
    return base.embed_tokens(ids) + base.embed_positions(torch.ones_like(ids))
