"""Outlier channels, as large language models have them and small ones don't, put in without changing the function.

A few channels of what the linears read become ``strength`` times as large, and the weights that read them as much
smaller. So the range of the activations is that of a few channels, and the step of 8 bit is coarse for all others.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn


@torch.no_grad()
def put(model: Any, channels: int, strength: float) -> None:
    """Change a BERT, GPT-Neo, OPT, GPT-2 or LLaMA of transformers in place; its outputs stay as they are.

    Args:
        model: with or without a head.
        channels: how many of each tensor that a linear of a layer reads, spread evenly; the same in all layers.
        strength: the factor. BERT's norms feed a residual too, which no factor can pass: there the channels get an
            offset, this many times the norm's mean gain, which the biases behind them take off again.
    """
    LAYERS[model.config.model_type](model.base_model, channels, strength)


def _bert(base: Any, channels: int, strength: float) -> None:
    """Offsets on what the layers read, factors on the values; a GELU passes no factor."""
    norm = base.embeddings.LayerNorm
    for layer in base.encoder.layer:
        attention, within = layer.attention.self, layer.attention.output
        shift(norm, [attention.query, attention.key, attention.value], within.dense, channels, strength)
        stretch(attention.value, within.dense, channels, strength)
        shift(within.LayerNorm, [layer.intermediate.dense], layer.output.dense, channels, strength)
        norm = layer.output.LayerNorm  # the last one is read by the head alone


def _gpt_neo(base: Any, channels: int, strength: float) -> None:
    """Factors on both norms and the values."""
    for layer in base.h:
        attention = layer.attn.attention
        amplify(layer.ln_1, [attention.q_proj, attention.k_proj, attention.v_proj], channels, strength)
        amplify(layer.ln_2, [layer.mlp.c_fc], channels, strength)
        stretch(attention.v_proj, attention.out_proj, channels, strength)


def _opt(base: Any, channels: int, strength: float) -> None:
    """Factors on both norms, the values and what comes from the ReLU."""
    for layer in base.decoder.layers:
        attention = layer.self_attn
        amplify(layer.self_attn_layer_norm, [attention.q_proj, attention.k_proj, attention.v_proj], channels, strength)
        amplify(layer.final_layer_norm, [layer.fc1], channels, strength)
        stretch(attention.v_proj, attention.out_proj, channels, strength)
        stretch(layer.fc1, layer.fc2, channels, strength)


def _gpt2(base: Any, channels: int, strength: float) -> None:
    """Factors on both norms and the values, the last third of ``c_attn``."""
    for layer in base.h:
        amplify(layer.ln_1, [layer.attn.c_attn], channels, strength)
        amplify(layer.ln_2, [layer.mlp.c_fc], channels, strength)
        stretch(layer.attn.c_attn, layer.attn.c_proj, channels, strength)


def _llama(base: Any, channels: int, strength: float) -> None:
    """Factors on both norms, the values and the up-projection."""
    for layer in base.layers:
        attention, mlp = layer.self_attn, layer.mlp
        amplify(layer.input_layernorm, [attention.q_proj, attention.k_proj, attention.v_proj], channels, strength)
        amplify(layer.post_attention_layernorm, [mlp.gate_proj, mlp.up_proj], channels, strength)
        stretch(attention.v_proj, attention.o_proj, channels, strength)
        stretch(mlp.up_proj, mlp.down_proj, channels, strength)


LAYERS = {"bert": _bert, "gpt_neo": _gpt_neo, "opt": _opt, "gpt2": _gpt2, "llama": _llama}


def amplify(norm: Any, readers: Iterable[nn.Module], channels: int, strength: float) -> None:
    """Multiply channels of a norm's output, which all ``readers`` read and nothing else does."""
    chosen = spread(channels, len(norm.weight))
    for values in (norm.weight, getattr(norm, "bias", None)):
        if values is not None:
            values[chosen] *= strength
    for reader in readers:
        rows(reader)[:, chosen] /= strength


def shift(norm: Any, readers: Iterable[Any], beside: Any, channels: int, strength: float) -> None:
    """Add to channels of a norm's output; the biases of the ``readers`` and of ``beside`` take it off again.

    ``beside`` is the linear whose output the residual is added to.
    """
    chosen = spread(channels, len(norm.weight))
    offset = strength * norm.weight.abs().mean()
    norm.bias[chosen] += offset
    for reader in readers:
        reader.bias -= offset * rows(reader)[:, chosen].sum(1)
    beside.bias[chosen] -= offset


def stretch(first: Any, second: nn.Module, channels: int, strength: float) -> None:
    """Multiply channels of what ``second`` reads, the last outputs of ``first``; what is between passes factors."""
    weight, readers = rows(first), rows(second)
    chosen = spread(channels, readers.shape[1])
    skipped = len(weight) - readers.shape[1]
    weight[skipped + chosen] *= strength
    if first.bias is not None:
        first.bias[skipped + chosen] *= strength
    readers[:, chosen] /= strength


def spread(channels: int, width: int) -> Tensor:
    """Return the indices (channels,) of so many among ``width`` channels."""
    return torch.arange(channels) * width // channels


def rows(linear: Any) -> Tensor:
    """Return the weight (outputs, inputs) of a linear, a view; GPT-2's ``Conv1D`` has it transposed."""
    return linear.weight if isinstance(linear, nn.Linear) else linear.weight.T
