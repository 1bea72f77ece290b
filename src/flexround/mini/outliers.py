"""Add outlier channels, as in large language models, to a small model without changing its function.

A few input channels of the linears become ``strength`` times as large, and the weights that read them as much smaller.
These channels then set the range of the activations, so that the 8-bit step is coarse for all other channels.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn


@torch.no_grad()
def put(model: Any, channels: int, strength: float) -> None:
    """Change a BERT, GPT-Neo, OPT, GPT-2 or LLaMA of transformers in place; its outputs stay the same.

    Args:
        model: with or without a head.
        channels: number of outlier channels per input tensor of a linear, evenly spread, equal in all layers.
        strength: the factor. BERT's norms also feed a residual, which passes no factor. Their channels get an
            offset, ``strength`` times the norm's mean gain, which later biases subtract.
    """
    LAYERS[model.config.model_type](model.base_model, channels, strength)


def _bert(base: Any, channels: int, strength: float) -> None:
    """Put offsets on the layers' inputs, factors on the values; a GELU passes no factor."""
    norm = base.embeddings.LayerNorm
    for layer in base.encoder.layer:
        attention, within = layer.attention.self, layer.attention.output
        shift(norm, [attention.query, attention.key, attention.value], within.dense, channels, strength)
        stretch(attention.value, within.dense, channels, strength)
        shift(within.LayerNorm, [layer.intermediate.dense], layer.output.dense, channels, strength)
        norm = layer.output.LayerNorm  # only the head reads the last norm


def _gpt_neo(base: Any, channels: int, strength: float) -> None:
    """Put factors on both norms and the values."""
    for layer in base.h:
        attention = layer.attn.attention
        amplify(layer.ln_1, [attention.q_proj, attention.k_proj, attention.v_proj], channels, strength)
        amplify(layer.ln_2, [layer.mlp.c_fc], channels, strength)
        stretch(attention.v_proj, attention.out_proj, channels, strength)


def _opt(base: Any, channels: int, strength: float) -> None:
    """Put factors on both norms, the values and the output of the ReLU."""
    for layer in base.decoder.layers:
        attention = layer.self_attn
        amplify(layer.self_attn_layer_norm, [attention.q_proj, attention.k_proj, attention.v_proj], channels, strength)
        amplify(layer.final_layer_norm, [layer.fc1], channels, strength)
        stretch(attention.v_proj, attention.out_proj, channels, strength)
        stretch(layer.fc1, layer.fc2, channels, strength)


def _gpt2(base: Any, channels: int, strength: float) -> None:
    """Put factors on both norms and the values, the last third of ``c_attn``."""
    for layer in base.h:
        amplify(layer.ln_1, [layer.attn.c_attn], channels, strength)
        amplify(layer.ln_2, [layer.mlp.c_fc], channels, strength)
        stretch(layer.attn.c_attn, layer.attn.c_proj, channels, strength)


def _llama(base: Any, channels: int, strength: float) -> None:
    """Put factors on both norms, the values and the up-projection."""
    for layer in base.layers:
        attention, mlp = layer.self_attn, layer.mlp
        amplify(layer.input_layernorm, [attention.q_proj, attention.k_proj, attention.v_proj], channels, strength)
        amplify(layer.post_attention_layernorm, [mlp.gate_proj, mlp.up_proj], channels, strength)
        stretch(attention.v_proj, attention.o_proj, channels, strength)
        stretch(mlp.up_proj, mlp.down_proj, channels, strength)


LAYERS = {"bert": _bert, "gpt_neo": _gpt_neo, "opt": _opt, "gpt2": _gpt2, "llama": _llama}


def amplify(norm: Any, readers: Iterable[nn.Module], channels: int, strength: float) -> None:
    """Multiply channels of a norm's output, which exactly the ``readers`` read."""
    chosen = spread(channels, len(norm.weight))
    for values in (norm.weight, getattr(norm, "bias", None)):
        if values is not None:
            values[chosen] *= strength
    for reader in readers:
        rows(reader)[:, chosen] /= strength


def shift(norm: Any, readers: Iterable[Any], beside: Any, channels: int, strength: float) -> None:
    """Add an offset to channels of a norm's output; the biases of ``readers`` and ``beside`` subtract it again.

    ``beside`` is the linear to whose output the residual is added.
    """
    chosen = spread(channels, len(norm.weight))
    offset = strength * norm.weight.abs().mean()
    norm.bias[chosen] += offset
    for reader in readers:
        reader.bias -= offset * rows(reader)[:, chosen].sum(1)
    beside.bias[chosen] -= offset


def stretch(first: Any, second: nn.Module, channels: int, strength: float) -> None:
    """Multiply input channels of ``second``, the last outputs of ``first``; layers in between pass factors."""
    weight, readers = rows(first), rows(second)
    chosen = spread(channels, readers.shape[1])
    skipped = len(weight) - readers.shape[1]
    weight[skipped + chosen] *= strength
    if first.bias is not None:
        first.bias[skipped + chosen] *= strength
    readers[:, chosen] /= strength


def spread(channels: int, width: int) -> Tensor:
    """Return the indices (channels,) of evenly spread channels among ``width``."""
    return torch.arange(channels) * width // channels


def rows(linear: Any) -> Tensor:
    """Return the weight (outputs, inputs) of a linear as a view; GPT-2's ``Conv1D`` stores the transpose."""
    return linear.weight if isinstance(linear, nn.Linear) else linear.weight.T
