"""The mini scale's language models: Hugging Face's classes, small, started so that they learn in a minute.

From the usual start a model this small spends most of its training on finding out that equal words match. Keys that
equal queries let every word attend to its repetitions from the first step, and weak positions don't drown them.
Nothing ties the two afterwards.
"""

from typing import Any

import torch
from torch import nn

from flexround.models import transformer

POSITION_SCALE = 0.3


def bert(**arguments: Any) -> nn.Module:
    """Return ``flexround.models.transformer.bert(**arguments)`` with another start."""
    model: Any = transformer.bert(**arguments)
    base = model.base_model
    attentions = [layer.attention.self for layer in base.encoder.layer]
    return _start(model, [(a.query, a.key) for a in attentions], base.embeddings.position_embeddings)


def gpt_neo(**arguments: Any) -> nn.Module:
    """Return ``flexround.models.transformer.gpt_neo(**arguments)`` with another start."""
    model: Any = transformer.gpt_neo(**arguments)
    base = model.base_model
    attentions = [layer.attn.attention for layer in base.h]
    return _start(model, [(a.q_proj, a.k_proj) for a in attentions], base.wpe)


@torch.no_grad()
def _start(model: nn.Module, pairs: list[tuple[nn.Linear, nn.Linear]], positions: nn.Embedding) -> nn.Module:
    """Copy queries to keys and weaken the positions."""
    for query, key in pairs:
        key.weight.copy_(query.weight)
    positions.weight.mul_(POSITION_SCALE)
    return model
