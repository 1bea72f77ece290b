"""Hugging Face's BERT, GPT-Neo, OPT, GPT-2 and LLaMA: their factories, named in ``params/scales``, and their blocks.

Each factory returns a model in eval mode, initialised from ``seed`` alone; the global generator stays as it was. The
arguments are ``seed`` (0 if not given), ``labels``, the classes of a classification (2; 1 for a regression), and those
of the class's configuration (``BertConfig``, ...). All raise SettingsError: unknown head or argument, or values that
don't go together. ``auto`` makes any other architecture, whose blocks ``flexround.models.structure`` finds.

A block is one layer, attention and feed-forward together. Padding must be at the end: positions count from the first
token.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import torch
import transformers
from huggingface_hub.errors import StrictDataclassError
from torch import Tensor, nn
from transformers.models.gpt_neo import modeling_gpt_neo

from flexround.errors import InputError, SettingsError, suggest
from flexround.models.blocks import Block, layer_blocks
from flexround.models.tensors import seeded

HEADS: dict[str, Any] = {  # the classes of transformers that have a head, by their configurations
    "causal-lm": transformers.MODEL_FOR_CAUSAL_LM_MAPPING,
    "classification": transformers.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    "pretraining": transformers.MODEL_FOR_PRETRAINING_MAPPING,  # of BERT masked words and next sentence
    "span": transformers.MODEL_FOR_QUESTION_ANSWERING_MAPPING,
}


def bert(head: str, **arguments: Any) -> nn.Module:
    """Return a BERT for classification, span or pretraining; what is not given is as in BERT-base."""
    return _build("bert", ("classification", "pretraining", "span"), head, **arguments)


def gpt_neo(head: str, **arguments: Any) -> nn.Module:
    """Return a GPT-Neo for classification or causal-lm; what is not given is as in GPT-Neo 1.3B.

    Classification needs ``pad_token_id``, because the last real token is classified.
    """
    if head == "classification" and arguments.get("pad_token_id") is None:
        raise SettingsError("gpt_neo: pad_token_id is missing; classification finds the last real token by it")
    return _exact(_build("gpt_neo", ("causal-lm", "classification"), head, **arguments))


def opt(head: str, **arguments: Any) -> nn.Module:
    """Return an OPT for causal-lm, by default as OPT-125M; InputError for OPT-350M's projections."""
    model = _build("opt", ("causal-lm",), head, **arguments)
    _refuse_projections(model.config)  # here too, so that none is fine-tuned in vain
    return model


def gpt2(head: str, **arguments: Any) -> nn.Module:
    """Return a GPT-2 for causal-lm; what is not given is as in the smallest GPT-2, of 124M parameters."""
    return _build("gpt2", ("causal-lm",), head, **arguments)


def llama(head: str, **arguments: Any) -> nn.Module:
    """Return a LLaMA for causal-lm, by default as LLaMA-7B; InputError for heads in groups of unequal size."""
    model = _build("llama", ("causal-lm",), head, **arguments)
    _refuse_uneven_groups(model.config)
    return model


def auto(head: str, model_type: str, **arguments: Any) -> nn.Module:
    """Return a model of any type that transformers knows, such as ``qwen3``, for causal-lm or classification.

    Its blocks are found by ``flexround.models.structure:blocks``.
    """
    if model_type not in transformers.CONFIG_MAPPING:
        raise SettingsError(f"auto: model_type {suggest(model_type, transformers.CONFIG_MAPPING)}")
    return _build(model_type, ("causal-lm", "classification"), head, **arguments)


def _build(kind: str, heads: Sequence[str], head: str, labels: int = 2, seed: int = 0, **config: Any) -> Any:
    """Check the arguments and build the model; transformers would swallow unknown ones."""
    config_class: Any = transformers.CONFIG_MAPPING[kind]
    offered = [name for name in heads if config_class in HEADS[name]]
    if head not in offered:
        raise SettingsError(f"{kind}: head {suggest(head, offered)}")
    if head != "classification" and labels != 2:
        raise SettingsError(f"{kind}: labels={labels} with head {head!r}; only classification has labels")
    known = {field.name for field in dataclasses.fields(config_class)} | {"attn_implementation"}
    if unknown := sorted(config.keys() - known):
        raise SettingsError(f"{kind}: argument {suggest(unknown[0], known)}")
    try:
        with seeded(seed):
            return HEADS[head][config_class](config_class(num_labels=labels, **config)).eval()
    except (StrictDataclassError, ValueError, KeyError) as error:
        raise SettingsError(f"{kind}: {error}") from error


def bert_blocks(model: Any) -> list[Block]:
    """Cut a ``BertModel``, or one with a head, into its layers (`layer_blocks`); token types count."""
    base = model.base_model
    inputs = ("attention.self", "attention.output.dense", "intermediate.dense", "output.dense")
    embed = functools.partial(_embed_bert, base.embeddings)
    return layer_blocks("layer", base.encoder.layer, inputs, embed, _call_bert)


def _embed_bert(embeddings: nn.Module, tokens: Tensor) -> Tensor:
    """Return hidden states (N, T, H) of token ids and types (N, 2, T)."""
    return embeddings(input_ids=tokens[:, 0], token_type_ids=tokens[:, 1])


def _call_bert(layer: nn.Module, x: Tensor, mask: Tensor | None) -> Tensor:
    """Run a layer on hidden states (N, T, H)."""
    return layer(x, None if mask is None else _bias(mask[:, None, None], x.dtype))


class GPTNeoSelfAttention(modeling_gpt_neo.GPTNeoSelfAttention):
    """Computes its logits in float32 under autocast, too: they are not scaled down, and bfloat16 is coarse for them."""

    def _attn(self, query: Tensor, *others: Any) -> Any:
        kind = query.device.type  # there is none for tensors without values
        off = torch.autocast(kind, enabled=False) if torch.amp.is_autocast_available(kind) else contextlib.nullcontext()
        with off:
            return super()._attn(query, *others)


def _exact(model: nn.Module) -> nn.Module:
    """Give the layers of a GPT-Neo the attention above, and return it."""
    for module in model.modules():
        if type(module) is modeling_gpt_neo.GPTNeoSelfAttention:
            module.__class__ = GPTNeoSelfAttention
    return model


def gpt_neo_blocks(model: Any) -> list[Block]:
    """Cut a ``GPTNeoModel``, or one with a head, into its layers (`layer_blocks`).

    Local and global attention need no care here: each layer keeps its own causal window.
    """
    base = model.base_model
    inputs = ("attn.attention", "attn.attention.out_proj", "mlp.c_fc", "mlp.c_proj")
    return layer_blocks("h", base.h, inputs, functools.partial(_embed_words, base), _call_gpt_neo)


def _embed_words(base: Any, tokens: Tensor) -> Tensor:
    """Return hidden states (N, T, H) of token ids and types (N, 2, T)."""
    positions = torch.arange(tokens.shape[-1], device=tokens.device)
    return base.drop(base.wte(tokens[:, 0]) + base.wpe(positions))


def _call_gpt_neo(layer: nn.Module, x: Tensor, mask: Tensor | None) -> Tensor:
    """Run a layer on hidden states (N, T, H). The logits are float32 whatever the type of ``x``."""
    return layer(x, attention_mask=None if mask is None else _bias(mask[:, None, None], torch.float32))[0]


def gpt2_blocks(model: Any) -> list[Block]:
    """Cut a ``GPT2Model``, or one with a head, into its layers (`layer_blocks`).

    The linears are ``Conv1D``, query, key and value one of them.
    """
    base = model.base_model
    call = functools.partial(call_causal, model.config._attn_implementation)
    inputs = ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
    return layer_blocks("h", base.h, inputs, functools.partial(_embed_words, base), call)


def opt_blocks(model: Any) -> list[Block]:
    """Cut an ``OPTModel``, or one with a head, into its layers (`layer_blocks`).

    The post-norm variant has no final norm. Padding must be at the end: OPT counts positions from the first real token,
    here from the first token. InputError for projections around the layers.
    """
    _refuse_projections(model.config)
    base = model.base_model.decoder
    call = functools.partial(call_causal, model.config._attn_implementation)
    inputs = ("self_attn", "self_attn.out_proj", "fc1", "fc2")
    return layer_blocks("layers", base.layers, inputs, functools.partial(_embed_opt, base), call)


def _refuse_projections(config: Any) -> None:
    """Raise InputError for the variant of OPT-350M: linears outside all layers, of which the paper says nothing."""
    if config.word_embed_proj_dim != config.hidden_size:
        raise InputError(
            f"opt: word_embed_proj_dim is {config.word_embed_proj_dim}, hidden_size {config.hidden_size}: the linears "
            "between embeddings and layers (OPT-350M) are in no block; take OPT-125M, 1.3B or 2.7B"
        )


def _embed_opt(base: Any, tokens: Tensor) -> Tensor:
    """Return hidden states (N, T, H) of token ids and types (N, 2, T)."""
    ids = tokens[:, 0]
    return base.embed_tokens(ids) + base.embed_positions(torch.ones_like(ids))


def llama_blocks(model: Any) -> list[Block]:
    """Cut a ``LlamaModel``, or one with a head, into its layers (`layer_blocks`).

    Gate and up share a quantized input, too. Padding must be at the end: positions count from the first token. Keys and
    values may be shared by groups of heads; InputError if the heads don't divide into such groups.
    """
    _refuse_uneven_groups(model.config)
    base = model.base_model
    call = functools.partial(_call_llama, model.config._attn_implementation, base.rotary_emb)
    inputs = ("self_attn", "self_attn.o_proj", "mlp", "mlp.down_proj")
    return layer_blocks("layers", base.layers, inputs, functools.partial(_embed_llama, base), call)


def _refuse_uneven_groups(config: Any) -> None:
    """Raise InputError for heads that don't divide into equal groups; transformers finds out in the first forward."""
    if config.num_attention_heads % config.num_key_value_heads:
        raise InputError(
            f"llama: num_attention_heads is {config.num_attention_heads}, no multiple of num_key_value_heads, "
            f"{config.num_key_value_heads}; correct the model's arguments"
        )


def _embed_llama(base: Any, tokens: Tensor) -> Tensor:
    """Return hidden states (N, T, H) of token ids and types (N, 2, T)."""
    return base.embed_tokens(tokens[:, 0])


def _call_llama(attention: str, rotary: nn.Module, layer: nn.Module, x: Tensor, mask: Tensor | None) -> Tensor:
    """Run a layer on hidden states (N, T, H); ``rotary`` gives the cosines and sines (1, T, head size) of positions."""
    turns = rotary(x, torch.arange(x.shape[1], device=x.device)[None])
    return layer(x, attention_mask=causal_mask(attention, x, mask), position_embeddings=turns)


def _bias(allowed: Tensor, dtype: torch.dtype) -> Tensor:
    """Return what to add to attention logits, of any shape: 0 where they are ``allowed``, else the least number."""
    return torch.zeros_like(allowed, dtype=dtype).masked_fill(~allowed, torch.finfo(dtype).min)


def causal_mask(attention: str, x: Tensor, mask: Tensor | None) -> Tensor | None:
    """Return what a layer needs to attend to earlier real tokens only, as the whole model would give it.

    Args:
        attention: the model's implementation. All but ``eager`` are causal without padding, and faster without a mask.
        x: hidden states (N, T, H).
        mask: bool (N, T), True for real tokens; None without padding.

    Returns:
        None, or (1 or N, 1, T, T): for ``eager`` added to the logits, of the type of ``x``; else bool, True to look.
    """
    if mask is None and attention != "eager":
        return None
    length = x.shape[1]
    allowed = torch.ones(1, 1, length, length, dtype=torch.bool, device=x.device).tril()
    if mask is not None:
        allowed = allowed & mask[:, None, None, :]
    return _bias(allowed, x.dtype) if attention == "eager" else allowed


def call_causal(attention: str, layer: nn.Module, x: Tensor, mask: Tensor | None) -> Tensor:
    """Run a layer on hidden states (N, T, H), with the mask that its attention needs (`causal_mask`)."""
    return layer(x, attention_mask=causal_mask(attention, x, mask))
