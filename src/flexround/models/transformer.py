"""Factories of Hugging Face's BERT, GPT-Neo, OPT, GPT-2 and LLaMA, named in ``params/scales``."""

import dataclasses
from typing import Any

import torch
import transformers
from huggingface_hub.errors import StrictDataclassError
from torch import nn

from flexround.errors import SettingsError, suggest
from flexround.models.llama import refuse_uneven_groups
from flexround.models.opt import refuse_projections

_BERT_HEADS = {
    "classification": transformers.BertForSequenceClassification,
    "span": transformers.BertForQuestionAnswering,
    "pretraining": transformers.BertForPreTraining,  # masked words and next sentence
}
_GPT_NEO_HEADS = {
    "classification": transformers.GPTNeoForSequenceClassification,
    "causal-lm": transformers.GPTNeoForCausalLM,
}
_OPT_HEADS = {"causal-lm": transformers.OPTForCausalLM}
_GPT2_HEADS = {"causal-lm": transformers.GPT2LMHeadModel}
_LLAMA_HEADS = {"causal-lm": transformers.LlamaForCausalLM}


def bert(head: str, labels: int = 2, seed: int = 0, **config: Any) -> nn.Module:
    """Return a BERT in eval mode, initialised from ``seed`` alone.

    Args:
        head: ``classification``, ``span`` or ``pretraining``.
        labels: classes, for classification only; 1 is regression.
        seed: of the initial weights; the global generator stays as it was.
        config: arguments of ``BertConfig``; what is left out has the value of BERT-base.

    Raises:
        SettingsError: unknown head or argument, or values that don't go together.
    """
    return _build(transformers.BertConfig, _BERT_HEADS, head, labels, seed, config)


def gpt_neo(head: str, labels: int = 2, seed: int = 0, **config: Any) -> nn.Module:
    """Return a GPT-Neo in eval mode, initialised from ``seed`` alone.

    Args:
        head: ``classification`` or ``causal-lm``.
        labels: classes, for classification only; 1 is regression.
        seed: of the initial weights; the global generator stays as it was.
        config: arguments of ``GPTNeoConfig``; what is left out has the value of GPT-Neo 1.3B. Classification needs
            ``pad_token_id``, because the last real token is classified.

    Raises:
        SettingsError: unknown head or argument, or values that don't go together.
    """
    if head == "classification" and config.get("pad_token_id") is None:
        raise SettingsError("gpt_neo: pad_token_id is missing; classification finds the last real token by it")
    return _build(transformers.GPTNeoConfig, _GPT_NEO_HEADS, head, labels, seed, config)


def opt(head: str, seed: int = 0, **config: Any) -> nn.Module:
    """Return an OPT in eval mode, initialised from ``seed`` alone.

    Args:
        head: ``causal-lm``.
        seed: of the initial weights; the global generator stays as it was.
        config: arguments of ``OPTConfig``; what is left out has the value of OPT-125M.

    Raises:
        SettingsError: unknown head or argument, or values that don't go together.
        InputError: the configuration has OPT-350M's projections.
    """
    model: Any = _build(transformers.OPTConfig, _OPT_HEADS, head, 2, seed, config)
    refuse_projections(model.config)  # here too, so that none is fine-tuned in vain
    return model


def gpt2(head: str, seed: int = 0, **config: Any) -> nn.Module:
    """Return a GPT-2 in eval mode, initialised from ``seed`` alone.

    Args:
        head: ``causal-lm``.
        seed: of the initial weights; the global generator stays as it was.
        config: arguments of ``GPT2Config`` (``n_embd``, ``n_layer``, ``n_head``, ...); what is left out has the value
            of the smallest GPT-2, of 124M parameters.

    Raises:
        SettingsError: unknown head or argument, or values that don't go together.
    """
    return _build(transformers.GPT2Config, _GPT2_HEADS, head, 2, seed, config)


def llama(head: str, seed: int = 0, **config: Any) -> nn.Module:
    """Return a LLaMA in eval mode, initialised from ``seed`` alone.

    Args:
        head: ``causal-lm``.
        seed: of the initial weights; the global generator stays as it was.
        config: arguments of ``LlamaConfig``; what is left out has the value of LLaMA-7B.

    Raises:
        SettingsError: unknown head or argument, or values that don't go together.
        InputError: heads that don't divide into groups of equal size.
    """
    model: Any = _build(transformers.LlamaConfig, _LLAMA_HEADS, head, 2, seed, config)
    refuse_uneven_groups(model.config)
    return model


def _build(
    config_class: Any, heads: dict[str, Any], head: str, labels: int, seed: int, config: dict[str, Any]
) -> nn.Module:
    """Check the arguments and build the model; transformers would swallow unknown ones."""
    kind = config_class.model_type
    if head not in heads:
        raise SettingsError(f"{kind}: head {suggest(head, heads)}")
    if head != "classification" and labels != 2:
        raise SettingsError(f"{kind}: labels={labels} with head {head!r}; only classification has labels")
    known = {field.name for field in dataclasses.fields(config_class)} | {"attn_implementation"}
    if unknown := sorted(config.keys() - known):
        raise SettingsError(f"{kind}: argument {suggest(unknown[0], known)}")
    try:
        with torch.random.fork_rng(devices=()):
            # Not torch.manual_seed: it would also seed the accelerators, whose state isn't put back.
            torch.default_generator.manual_seed(seed)
            return heads[head](config_class(num_labels=labels, **config)).eval()
    except (StrictDataclassError, ValueError, KeyError) as error:
        raise SettingsError(f"{kind}: {error}") from error
