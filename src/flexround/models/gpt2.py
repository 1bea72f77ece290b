"""Hugging Face's GPT-2 as blocks: one per decoder layer, attention and feed-forward together."""

import functools
from typing import Any

from flexround.models.blocks import Block, layer_blocks
from flexround.models.gpt_neo import embed_words
from flexround.models.masks import call_causal


def blocks(model: Any) -> list[Block]:
    """Cut a ``GPT2Model``, or one with a head, into its layers (`layer_blocks`).

    The linears are ``Conv1D``, query, key and value one of them.
    """
    base = model.base_model
    call = functools.partial(call_causal, model.config._attn_implementation)
    inputs = ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
    return layer_blocks("h", base.h, inputs, functools.partial(embed_words, base), call)
