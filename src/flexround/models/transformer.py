"""Factories of Hugging Face's BERT, GPT-Neo, OPT, GPT-2, LLaMA and any other, named in ``params/scales``.

Each returns a model in eval mode, initialised from ``seed`` alone; the global generator stays as it was. The arguments
are ``seed`` (0 if not given), ``labels``, the classes of a classification (2; 1 for a regression), and those of the
class's configuration (``BertConfig``, ...). All raise SettingsError: unknown head or argument, or values that don't go
together.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import transformers
from huggingface_hub.errors import StrictDataclassError
from torch import nn

from flexround.errors import SettingsError, suggest
from flexround.models.gpt_neo import exact
from flexround.models.llama import refuse_uneven_groups
from flexround.models.opt import refuse_projections
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
    return exact(_build("gpt_neo", ("causal-lm", "classification"), head, **arguments))


def opt(head: str, **arguments: Any) -> nn.Module:
    """Return an OPT for causal-lm, by default as OPT-125M; InputError for OPT-350M's projections."""
    model = _build("opt", ("causal-lm",), head, **arguments)
    refuse_projections(model.config)  # here too, so that none is fine-tuned in vain
    return model


def gpt2(head: str, **arguments: Any) -> nn.Module:
    """Return a GPT-2 for causal-lm; what is not given is as in the smallest GPT-2, of 124M parameters."""
    return _build("gpt2", ("causal-lm",), head, **arguments)


def llama(head: str, **arguments: Any) -> nn.Module:
    """Return a LLaMA for causal-lm, by default as LLaMA-7B; InputError for heads in groups of unequal size."""
    model = _build("llama", ("causal-lm",), head, **arguments)
    refuse_uneven_groups(model.config)
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
