"""Factories of Hugging Face's BERT, GPT-Neo, OPT, GPT-2, LLaMA and any other, named in ``params/scales``.

Each returns a model in eval mode, initialised from ``seed`` alone; the global generator stays as it was. ``config`` are
arguments of the class's configuration (``BertConfig``, ...), ``labels`` the classes of a classification, 1 for a
regression. All raise SettingsError: unknown head or argument, or values that don't go together.
"""

import dataclasses
from typing import Any

import transformers
from huggingface_hub.errors import StrictDataclassError
from torch import nn

from flexround.errors import SettingsError, suggest
from flexround.models.llama import refuse_uneven_groups
from flexround.models.opt import refuse_projections
from flexround.models.tensors import seeded


def bert(head: str, labels: int = 2, seed: int = 0, **config: Any) -> nn.Module:
    """Return a BERT for classification, span or pretraining; what ``config`` leaves out is as in BERT-base."""
    heads = {
        "classification": transformers.BertForSequenceClassification,
        "span": transformers.BertForQuestionAnswering,
        "pretraining": transformers.BertForPreTraining,  # masked words and next sentence
    }
    return _build(transformers.BertConfig, heads, head, labels, seed, config)


def gpt_neo(head: str, labels: int = 2, seed: int = 0, **config: Any) -> nn.Module:
    """Return a GPT-Neo for classification or causal-lm; what ``config`` leaves out is as in GPT-Neo 1.3B.

    Classification needs ``pad_token_id``, because the last real token is classified.
    """
    if head == "classification" and config.get("pad_token_id") is None:
        raise SettingsError("gpt_neo: pad_token_id is missing; classification finds the last real token by it")
    heads = {
        "classification": transformers.GPTNeoForSequenceClassification,
        "causal-lm": transformers.GPTNeoForCausalLM,
    }
    return _build(transformers.GPTNeoConfig, heads, head, labels, seed, config)


def opt(head: str, seed: int = 0, **config: Any) -> nn.Module:
    """Return an OPT for causal-lm, as OPT-125M but for ``config``; InputError if that has OPT-350M's projections."""
    model = _build(transformers.OPTConfig, {"causal-lm": transformers.OPTForCausalLM}, head, 2, seed, config)
    refuse_projections(model.config)  # here too, so that none is fine-tuned in vain
    return model


def gpt2(head: str, seed: int = 0, **config: Any) -> nn.Module:
    """Return a GPT-2 for causal-lm; what ``config`` leaves out is as in the smallest GPT-2, of 124M parameters."""
    return _build(transformers.GPT2Config, {"causal-lm": transformers.GPT2LMHeadModel}, head, 2, seed, config)


def llama(head: str, seed: int = 0, **config: Any) -> nn.Module:
    """Return a LLaMA for causal-lm, as LLaMA-7B but for ``config``; InputError for heads in groups of unequal size."""
    model = _build(transformers.LlamaConfig, {"causal-lm": transformers.LlamaForCausalLM}, head, 2, seed, config)
    refuse_uneven_groups(model.config)
    return model


def auto(head: str, model_type: str, labels: int = 2, seed: int = 0, **config: Any) -> nn.Module:
    """Return a model of any type that transformers knows, such as ``qwen3``, for causal-lm or classification.

    Its blocks are found by ``flexround.models.structure:blocks``.
    """
    known = transformers.CONFIG_MAPPING
    if model_type not in known:
        raise SettingsError(f"auto: model_type {suggest(model_type, known)}")
    config_class = known[model_type]
    mappings = {
        "causal-lm": transformers.MODEL_FOR_CAUSAL_LM_MAPPING,
        "classification": transformers.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    }
    heads = {name: mapping[config_class] for name, mapping in mappings.items() if config_class in mapping}
    return _build(config_class, heads, head, labels, seed, config)


def _build(config_class: Any, heads: dict[str, Any], head: str, labels: int, seed: int, config: dict[str, Any]) -> Any:
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
        with seeded(seed):
            return heads[head](config_class(num_labels=labels, **config)).eval()
    except (StrictDataclassError, ValueError, KeyError) as error:
        raise SettingsError(f"{kind}: {error}") from error
