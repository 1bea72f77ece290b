"""The mini scale's language models: Hugging Face's classes, small, started so that they learn in a minute.

From the usual start a model this small spends most of its training on finding out that equal words match. First-layer
keys that equal the queries let every word attend to its repetitions from the first step, and positions don't drown
them; the later layers are free to gather what it finds. Nothing ties keys and queries afterwards.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn

from flexround.models import transformer

POSITION_SCALE = 0.3  # of BERT's positions
# GPT-Neo: chosen among a few by the loss of the verdicts in pretraining (synthetic.corpus)
POSITION_SHARE = 4  # one in so many dimensions holds the position at the start, the others the word
POSITION_LOUDNESS = 1.5  # deviation of the positions, in that of the words
SHARPNESS = 10.0  # mean attention logit of a word to itself
PREVIOUS_SHARPNESS = 20.0  # GPT-2: mean attention logit to the word before
COPYING = 0.5  # GPT-2: by how much the last layer's output starts as the words that it attends to
QUIET = 0.3  # factor of the first layer's output, which would drown the mark


@torch.no_grad()
def bert(**arguments: Any) -> nn.Module:
    """Return ``flexround.models.transformer.bert(**arguments)`` with another start.

    Set ``tie_word_embeddings: false``: predicting words pulls tied embeddings together, so that equal words no longer
    stand out.
    """
    model: Any = transformer.bert(**arguments)
    base = model.base_model
    first = base.encoder.layer[0].attention.self
    first.key.weight.copy_(first.query.weight)
    base.embeddings.position_embeddings.weight.mul_(POSITION_SCALE)
    return model


@torch.no_grad()
def gpt_neo(**arguments: Any) -> nn.Module:
    """Return ``flexround.models.transformer.gpt_neo(**arguments)`` with another start.

    A word has no type that says which text it is in. Therefore positions are sinusoids in dimensions of their own:
    the first layer matches words whatever their positions and subtracts the positions of the matches. What is left
    marks a word that was there before, and says how far back. Set ``tie_word_embeddings: false`` as for ``bert``.
    """
    model: Any = transformer.gpt_neo(**arguments)
    base = model.base_model
    layer, words, positions = base.h[0], base.wte.weight, base.wpe.weight
    share = separate_positions(words, positions)
    attention = layer.attn.attention
    query, value, out = attention.q_proj.weight, attention.v_proj.weight, attention.out_proj.weight
    query[:, :share] = 0
    # GPT-Neo doesn't divide logits by the root of the head's size.
    own = attention.q_proj(layer.ln_1(words + positions[0])).square().sum(1).mean() / attention.num_heads
    query.mul_(torch.sqrt(SHARPNESS / own))
    attention.k_proj.weight.copy_(query)
    out.mul_(QUIET)
    identity = torch.eye(share)
    value[:share], out[:share] = 0, 0
    value[:share, :share] = identity
    out[:share, :share] = -identity * (words + positions[0]).std(1).mean()  # undoes the norm before the values
    return model


@torch.no_grad()
def gpt2(**arguments: Any) -> nn.Module:
    """Return ``flexround.models.transformer.gpt2(**arguments)`` with a start from which it learns to copy.

    What a record says is copied from it word by word. The first layer's first head attends to equal words, as in
    ``gpt_neo``, its second head to the word before, which it finds by the position; the last layer passes on the words
    it attends to, and tied embeddings say them.
    """
    model: Any = transformer.gpt2(**arguments)
    base = model.base_model
    words, positions = base.wte.weight, base.wpe.weight
    share, width = separate_positions(words, positions), words.shape[1]
    size = width // base.config.n_head
    query, key, _ = base.h[0].attn.c_attn.weight.split(width, dim=1)
    equal, before = slice(0, size), slice(size, 2 * size)
    x = base.h[0].ln_1(words + positions[0])
    query[:share, equal] = 0
    own = (x @ query[:, equal]).square().sum(1).mean() / math.sqrt(size)
    query[:, equal] *= torch.sqrt(SHARPNESS / own)
    key[:, equal] = query[:, equal]
    loudness = math.sqrt(PREVIOUS_SHARPNESS * math.sqrt(size) / x[:, :share].square().sum(1).mean())
    query[:, before], key[:, before] = 0, 0
    key[:share, size : size + share] = loudness * torch.eye(share)
    query[:share, size : size + share] = loudness * one_step_back(len(positions), share)
    last = base.h[-1].attn
    last.c_attn.weight[:, 2 * width :] = torch.eye(width)
    last.c_proj.weight.copy_(COPYING * torch.eye(width))
    return model


def separate_positions(words: Tensor, positions: Tensor) -> int:
    """Put positions (P, H) as sinusoids into the first dimensions and words (V, H) into the others; return how many.

    Both embeddings are changed in place.
    """
    share = words.shape[1] // POSITION_SHARE // 2 * 2
    positions.zero_()
    positions[:, :share] = sinusoids(len(positions), share) * (math.sqrt(2) * POSITION_LOUDNESS * words.std())
    words[:, :share] = 0
    return share


def one_step_back(count: int, size: int) -> Tensor:
    """Return the matrix (size, size) that turns a row of ``sinusoids(count, size)`` into that one position before."""
    turns = rates(count, size)
    back, half = torch.zeros(size, size), torch.arange(size // 2)
    back[half, half] = back[half + size // 2, half + size // 2] = turns.cos()
    back[half + size // 2, half], back[half, half + size // 2] = -turns.sin(), turns.sin()
    return back


def sinusoids(count: int, size: int) -> Tensor:
    """Return sines and cosines (count, size) of geometric wavelengths, from four positions to twice ``count``.

    As in section 3.5 of "Attention is all you need", with wavelengths for short texts.
    """
    angles = torch.arange(count)[:, None] * rates(count, size)
    return torch.cat([angles.sin(), angles.cos()], dim=1)


def rates(count: int, size: int) -> Tensor:
    """Return the angles (size / 2,) by which the pairs of ``sinusoids(count, size)`` turn from word to word."""
    return torch.logspace(math.log10(math.pi / count), math.log10(math.pi / 2), size // 2)
