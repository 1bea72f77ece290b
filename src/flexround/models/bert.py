"""Hugging Face's BERT as blocks: one per encoder layer, attention and feed-forward together."""

import functools
from typing import Any

from torch import Tensor, nn

from flexround.models.blocks import Block, layer_blocks
from flexround.models.masks import bias


def blocks(model: Any) -> list[Block]:
    """Cut a ``BertModel``, or one with a head, into its layers (`layer_blocks`); token types count."""
    base = model.base_model
    inputs = ("attention.self", "attention.output.dense", "intermediate.dense", "output.dense")
    return layer_blocks("layer", base.encoder.layer, inputs, functools.partial(_embed, base.embeddings), _call)


def _embed(embeddings: nn.Module, tokens: Tensor) -> Tensor:
    """Return hidden states (N, T, H) of token ids and types (N, 2, T)."""
    return embeddings(input_ids=tokens[:, 0], token_type_ids=tokens[:, 1])


def _call(layer: nn.Module, x: Tensor, mask: Tensor | None) -> Tensor:
    """Run a layer on hidden states (N, T, H)."""
    return layer(x, None if mask is None else bias(mask[:, None, None], x.dtype))
