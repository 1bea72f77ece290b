"""Hugging Face's BERT, GPT-Neo, OPT, GPT-2 and LLaMA: their factories, named in ``params/scales``, and their blocks.

Each factory returns a model in eval mode, initialised from ``seed`` alone; the global generator does not change. The
arguments are ``head``, a key of ``HEADS``; ``seed`` (default 0); ``labels``, the number of classes (default 2; 1 for a
regression); and the arguments of the class's configuration (``BertConfig``, ...). Their defaults are the sizes of
BERT-base, GPT-Neo 1.3B, OPT-125M, the smallest GPT-2 and LLaMA-7B. All raise SettingsError for an unknown head or
argument. ``auto`` builds any other architecture; ``flexround.models.structure`` finds its blocks.

A block is one layer, attention and feed-forward together. Padding must be at the end: positions count from the first
token.
"""

import contextlib
import dataclasses
import functools
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers.models.gpt_neo import modeling_gpt_neo

from flexround.errors import SettingsError, suggest
from flexround.models.blocks import Block, layer_blocks
from flexround.models.tensors import seeded

HEADS: dict[str, Any] = {  # transformers classes by configuration, for each head
    "causal-lm": transformers.MODEL_FOR_CAUSAL_LM_MAPPING,
    "classification": transformers.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    "pretraining": transformers.MODEL_FOR_PRETRAINING_MAPPING,  # for BERT: masked words and next sentence
    "span": transformers.MODEL_FOR_QUESTION_ANSWERING_MAPPING,
}


def _build(kind: str, head: str, labels: int = 2, seed: int = 0, **config: Any) -> Any:
    """Build the model; refuse unknown arguments, which transformers would ignore."""
    config_class: Any = transformers.CONFIG_MAPPING[kind]
    offered = [name for name, classes in HEADS.items() if config_class in classes]
    if head not in offered:
        raise SettingsError(f"{kind}: head {suggest(head, offered)}")
    known = {field.name for field in dataclasses.fields(config_class)} | {"attn_implementation"}
    if unknown := sorted(config.keys() - known):
        raise SettingsError(f"{kind}: argument {suggest(unknown[0], known)}")
    with seeded(seed):
        return HEADS[head][config_class](config_class(num_labels=labels, **config)).eval()


bert = functools.partial(_build, "bert")
opt = functools.partial(_build, "opt")
gpt2 = functools.partial(_build, "gpt2")
llama = functools.partial(_build, "llama")


def gpt_neo(head: str, **arguments: Any) -> nn.Module:
    """Return a GPT-Neo; for classification it needs ``pad_token_id``, to find the last real token."""
    model = _build("gpt_neo", head, **arguments)
    for module in model.modules():
        if type(module) is modeling_gpt_neo.GPTNeoSelfAttention:
            module.__class__ = GPTNeoSelfAttention
    return model


def auto(head: str, model_type: str, **arguments: Any) -> nn.Module:
    """Return a model of any type in transformers, such as ``qwen3``.

    ``flexround.models.structure:blocks`` finds its blocks.
    """
    if model_type not in transformers.CONFIG_MAPPING:
        raise SettingsError(f"auto: model_type {suggest(model_type, transformers.CONFIG_MAPPING)}")
    return _build(model_type, head, **arguments)


def bert_blocks(model: Any) -> list[Block]:
    """Cut a ``BertModel``, perhaps with a head, into its layers (`layer_blocks`); token types count."""
    base = model.base_model
    inputs = ("attention.self", "attention.output.dense", "intermediate.dense", "output.dense")

    def embed(tokens: Tensor) -> Tensor:
        return base.embeddings(input_ids=tokens[:, 0], token_type_ids=tokens[:, 1])

    return layer_blocks("layer", base.encoder.layer, inputs, embed, _call_bert)


def _call_bert(layer: nn.Module, x: Tensor, mask: Tensor | None) -> Tensor:
    """Run a layer on hidden states (N, T, H)."""
    return layer(x, None if mask is None else _bias(mask[:, None, None], x.dtype))


class GPTNeoSelfAttention(modeling_gpt_neo.GPTNeoSelfAttention):
    """Computes logits in float32 even under autocast: they are not scaled down, so that bfloat16 is too coarse."""

    def _attn(self, query: Tensor, *others: Any) -> Any:
        kind = query.device.type  # tensors without values have no autocast
        off = torch.autocast(kind, enabled=False) if torch.amp.is_autocast_available(kind) else contextlib.nullcontext()
        with off:
            return super()._attn(query, *others)


def gpt_neo_blocks(model: Any) -> list[Block]:
    """Cut a ``GPTNeoModel``, perhaps with a head, into its layers (`layer_blocks`).

    Local and global attention need no special code: each layer keeps its own causal window.
    """
    base = model.base_model
    inputs = ("attn.attention", "attn.attention.out_proj", "mlp.c_fc", "mlp.c_proj")
    return layer_blocks("h", base.h, inputs, functools.partial(_embed_words, base), _call_gpt_neo)


def _embed_words(base: Any, tokens: Tensor) -> Tensor:
    """Return hidden states (N, T, H) for token ids and types (N, 2, T)."""
    positions = torch.arange(tokens.shape[-1], device=tokens.device)
    return base.drop(base.wte(tokens[:, 0]) + base.wpe(positions))


def _call_gpt_neo(layer: nn.Module, x: Tensor, mask: Tensor | None) -> Tensor:
    """Run a layer on hidden states (N, T, H). The logits are float32 whatever the type of ``x``."""
    return layer(x, attention_mask=None if mask is None else _bias(mask[:, None, None], torch.float32))[0]


def gpt2_blocks(model: Any) -> list[Block]:
    """Cut a ``GPT2Model``, perhaps with a head, into its layers (`layer_blocks`).

    The linears are ``Conv1D``; query, key and value are one linear.
    """
    base = model.base_model
    call = functools.partial(call_causal, model.config._attn_implementation)
    inputs = ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
    return layer_blocks("h", base.h, inputs, functools.partial(_embed_words, base), call)


def opt_blocks(model: Any) -> list[Block]:
    """Cut an ``OPTModel``, perhaps with a head, into its layers (`layer_blocks`).

    The post-norm variant has no final norm. OPT-350M has further linears, which are in no block: take another size.
    """
    base = model.base_model.decoder
    call = functools.partial(call_causal, model.config._attn_implementation)
    inputs = ("self_attn", "self_attn.out_proj", "fc1", "fc2")

    def embed(tokens: Tensor) -> Tensor:
        return base.embed_tokens(tokens[:, 0]) + base.embed_positions(torch.ones_like(tokens[:, 0]))

    return layer_blocks("layers", base.layers, inputs, embed, call)


def llama_blocks(model: Any) -> list[Block]:
    """Cut a ``LlamaModel``, perhaps with a head, into its layers (`layer_blocks`).

    Gate and up share a quantized input. Groups of heads may share keys and values.
    """
    base = model.base_model
    call = functools.partial(_call_llama, model.config._attn_implementation, base.rotary_emb)
    inputs = ("self_attn", "self_attn.o_proj", "mlp", "mlp.down_proj")
    return layer_blocks("layers", base.layers, inputs, lambda tokens: base.embed_tokens(tokens[:, 0]), call)


def _call_llama(attention: str, rotary: nn.Module, layer: nn.Module, x: Tensor, mask: Tensor | None) -> Tensor:
    """Run a layer on hidden states (N, T, H); ``rotary`` returns the positions' cosines and sines (1, T, head size)."""
    turns = rotary(x, torch.arange(x.shape[1], device=x.device)[None])
    return layer(x, attention_mask=causal_mask(attention, x, mask), position_embeddings=turns)


def _bias(allowed: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the bias of attention logits, shape of ``allowed``: 0 where it is True, else the type's minimum."""
    return torch.zeros_like(allowed, dtype=dtype).masked_fill(~allowed, torch.finfo(dtype).min)


def causal_mask(attention: str, x: Tensor, mask: Tensor | None) -> Tensor | None:
    """Return the mask by which a layer attends to earlier real tokens only, as in the whole model.

    Args:
        attention: the model's implementation. Without padding, all but ``eager`` are causal without a mask, and faster.
        x: hidden states (N, T, H).
        mask: bool (N, T), True for real tokens; None without padding.

    Returns:
        None, or (1 or N, 1, T, T): for ``eager`` a bias of the logits, type of ``x``; else bool, True to attend.
    """
    if mask is None and attention != "eager":
        return None
    length = x.shape[1]
    allowed = torch.ones(1, 1, length, length, dtype=torch.bool, device=x.device).tril()
    if mask is not None:
        allowed = allowed & mask[:, None, None, :]
    return _bias(allowed, x.dtype) if attention == "eager" else allowed


def call_causal(attention: str, layer: nn.Module, x: Tensor, mask: Tensor | None) -> Tensor:
    """Run a layer on hidden states (N, T, H), with its attention's mask (`causal_mask`)."""
    return layer(x, attention_mask=causal_mask(attention, x, mask))
