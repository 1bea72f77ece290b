"""The mini scale's language models: Hugging Face's classes, small, started so that they learn in a minute.

From the usual start a model this small spends most of its training on finding out that equal words match. First-layer
keys that equal the queries let every word attend to its repetitions from the first step, and weak positions don't
drown them; the later layers are free to gather what it finds. Nothing ties keys and queries afterwards.
"""

from typing import Any

import torch
from torch import nn

from flexround.models import transformer

POSITION_SCALE = 0.3


def bert(**arguments: Any) -> nn.Module:
    """Return ``flexround.models.transformer.bert(**arguments)`` with another start.

    Set ``tie_word_embeddings: false``: predicting words pulls tied embeddings together, so that equal words no longer
    stand out.
    """
    model: Any = transformer.bert(**arguments)
    base = model.base_model
    first = base.encoder.layer[0].attention.self
    return _start(model, first.query, first.key, base.embeddings.position_embeddings)


def gpt_neo(**arguments: Any) -> nn.Module:
    """Return ``flexround.models.transformer.gpt_neo(**arguments)`` with another start."""
    model: Any = transformer.gpt_neo(**arguments)
    base = model.base_model
    first = base.h[0].attn.attention
    return _start(model, first.q_proj, first.k_proj, base.wpe)


@torch.no_grad()
def _start(model: nn.Module, query: nn.Linear, key: nn.Linear, positions: nn.Embedding) -> nn.Module:
    """Copy the first layer's queries to its keys and weaken the positions."""
    key.weight.copy_(query.weight)
    positions.weight.mul_(POSITION_SCALE)
    return model
