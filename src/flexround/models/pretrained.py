"""Hugging Face model directories: their weights into our models, and their tokenizers into our form."""

import inspect
import json
import logging
import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from flexround.errors import InputError
from flexround.io.artifacts import write_text
from flexround.models import tokenizer_files
from flexround.models.checkpoints import load_into, read_foreign
from flexround.models.shards import read_index
from flexround.models.tokenizer_files import TOKENIZER

log = logging.getLogger(__name__)

# Fields of a configuration that change nothing of what a network computes from its weights, but in training.
_WITHOUT_EFFECT = re.compile(
    r".*(dropout|drop|pdrop|layerdrop|token_id)$|(summary|problem|router_aux|output)_.*|init.*_(range|std)|init_std|"
    "use_cache|pretraining_tp|gradient_checkpointing|dtype|transformers_version|architectures|id2label|label2id|"
    "chunk_size_feed_forward|return_dict|is_encoder_decoder|attention_types"
)


def import_directory(model: Any, directory: Path, out: Path) -> None:
    """Load a Hugging Face directory into ``model``, and put its tokenizer into ``out`` in our form.

    Raises:
        InputError: missing or damaged files, another architecture, a tokenizer of another model.
    """
    tokenizer = tokenizer_files.tokenizer_file(directory)
    tokenizer_files.check_vocabulary(model, tokenizer, directory)
    if not tokenizer_files.of_gpt2(directory):
        tokenizer_files.check_begin(model, tokenizer, directory)
    load_pretrained(model, directory)
    write_text(out / TOKENIZER, tokenizer.to_str(pretty=True))


def load_pretrained(model: Any, directory: Path) -> None:
    """Load the weights of a Hugging Face directory into ``model``, a model of one of their classes.

    The class itself maps the names, legacy ones included. A classifier that the directory lacks, or has for another
    number of labels, stays as it is and is named in the log.

    Args:
        model: without weights it is only compared with the directory.
        directory: ``config.json`` and ``model.safetensors``, its shards with an index, or the same as
            ``pytorch_model.bin``, of which only tensors are read.

    Raises:
        InputError: missing or damaged files, another architecture, or missing weights; ``model`` is as it was before.
    """
    directory = Path(directory)
    _check_architecture(model.config, directory)
    if next(model.parameters()).is_meta:  # streamed: its weights are read when they are needed
        return
    # Not by its path: we read the files, so that the messages are ours and no pickle runs.
    state = _read_weights(directory)
    with torch.random.fork_rng(devices=()):  # it would draw a missing head from the global generator
        loaded, report = type(model).from_pretrained(
            None,
            config=model.config,
            state_dict=state,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
            dtype=torch.float32,
            **tokenizer_files.LOCAL,
        )
    fresh = {*report["missing_keys"], *(key for key, *_ in report["mismatched_keys"])}
    base = f"{model.base_model_prefix}."
    # The pooler is a head too: a masked language model is trained without one. A language model's head is never trained
    # here from the start; tied to the embeddings, it is no weight of its own.
    known = (base, "lm_head.")
    if lost := sorted(key for key in fresh if key.startswith(known) and not key.startswith(f"{base}pooler.")):
        raise InputError(
            f"{directory}: {len(lost)} weights of this {type(model).__name__} are missing or have another shape, the "
            f"first is {lost[0]}; fetch the directory again"
        )
    if fresh:
        log.info("%s: not in the directory, so newly initialised: %s", directory, ", ".join(sorted(fresh)))
    kept = {name: value for name, value in loaded.state_dict().items() if name not in fresh}
    load_into(model, model.state_dict() | kept, str(directory))


def _check_architecture(config: Any, directory: Path) -> None:
    """Compare the directory's configuration with that of our settings; all differences are one message."""
    path = directory / "config.json"
    if not path.is_file():
        raise InputError(f"{path}: missing; put a Hugging Face model directory there")
    try:
        raw = json.loads(path.read_text())
        # A directory of another type is read as it stands, only to be compared.
        theirs = type(config)(**raw) if raw["model_type"] == config.model_type else None
    except Exception as error:
        raise InputError(f"{path}: not a model's configuration: {error}") from error
    if theirs is None:
        raise InputError(f"{path}: model_type is {raw['model_type']!r}, the settings say {config.model_type!r}")
    check_same(config, theirs, path)


def check_same(config: Any, theirs: Any, path: Path) -> None:
    """Raise InputError, with all differences, if a file's configuration has another architecture than our settings."""
    named = inspect.signature(type(config)).parameters
    compared = ["model_type", "attention_layers", *(name for name in named if not _WITHOUT_EFFECT.fullmatch(name))]
    differences = [
        f"{name} is {getattr(theirs, name)!r}, the settings say {getattr(config, name)!r}"
        for name in compared
        if getattr(theirs, name, None) != getattr(config, name, None)
    ]
    if differences:
        raise InputError(
            f"{path}: {'; '.join(differences)}; correct the model's arguments in params/scales or take another model"
        )


def _read_weights(directory: Path) -> dict[str, Tensor]:
    """Read all tensors of the directory, from safetensors if there are any."""
    for name in ("model.safetensors", "pytorch_model.bin"):
        if (directory / name).is_file():
            return read_foreign(directory / name)
        if (index := directory / f"{name}.index.json").is_file():
            shards = sorted(set(read_index(index).values()))
            return {key: value for shard in shards for key, value in read_foreign(shard).items()}
    raise InputError(f"{directory}: neither model.safetensors nor pytorch_model.bin, whole or in shards with an index")
