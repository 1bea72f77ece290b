"""Load weights from Hugging Face directories and GGUF files into our models; convert their tokenizers."""

import contextlib
import inspect
import io
import logging
import re
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from flexround.errors import InputError
from flexround.io.artifacts import write_text
from flexround.models import tokenizer_files
from flexround.models.tokenizer_files import LOCAL, TOKENIZER
from flexround.models.weights import load_into

log = logging.getLogger(__name__)

# Fields of a configuration that change a network's computations in training alone, or not at all.
_WITHOUT_EFFECT = re.compile(
    r".*(dropout|drop|pdrop|layerdrop|token_id)$|(summary|problem|router_aux|output)_.*|init.*_(range|std)|init_std|"
    "use_cache|pretraining_tp|gradient_checkpointing|dtype|transformers_version|architectures|id2label|label2id|"
    "chunk_size_feed_forward|return_dict|is_encoder_decoder|attention_types"
)


def import_directory(model: Any, directory: Path, out: Path) -> None:
    """Load a Hugging Face directory into ``model``, and write its tokenizer to ``out`` in our form.

    Raises:
        InputError: the architecture differs, weights are missing, or the tokenizer belongs to another model.
    """
    tokenizer = tokenizer_files.padded(tokenizer_files.find(directory))
    tokenizer_files.check_vocabulary(model, tokenizer, directory)
    if not tokenizer_files.of_gpt2(directory):
        tokenizer_files.check_begin(model, tokenizer, directory)
    load_pretrained(model, directory)
    write_text(out / TOKENIZER, tokenizer.to_str(pretty=True))


def load_pretrained(model: Any, directory: Path) -> None:
    """Load the weights of a Hugging Face directory into ``model``, a model of a transformers class.

    The class itself maps names, including legacy names. A classifier that the directory lacks, or has for another
    number of labels, keeps its initial weights; the log names it.

    Args:
        model: target; a model without weights is only compared with the directory.
        directory: ``config.json`` and ``model.safetensors`` or ``pytorch_model.bin``, whole or in shards; no code in
            these files runs.

    Raises:
        InputError: the architecture differs, or weights are missing.
    """
    check_same(model.config, AutoConfig.from_pretrained(directory, **LOCAL), directory / "config.json")
    if next(model.parameters()).is_meta:  # streamed: weights are read when needed
        return
    with torch.random.fork_rng(devices=()):  # from_pretrained draws missing heads from the global generator
        loaded, report = type(model).from_pretrained(
            directory,
            config=model.config,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
            dtype=torch.float32,
            **LOCAL,
        )
    fresh = {*report["missing_keys"], *(key for key, *_ in report["mismatched_keys"])}
    base = f"{model.base_model_prefix}."
    # The pooler counts as a head: masked language models are trained without it. A language model's head is never
    # trained from scratch here; tied to the embeddings, it is no separate weight.
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


def check_same(config: Any, theirs: Any, path: Path) -> None:
    """Raise InputError, with all differences, if a file's architecture differs from our settings."""
    named = inspect.signature(type(config)).parameters
    compared = ["model_type", "attention_layers", *(name for name in named if not _WITHOUT_EFFECT.fullmatch(name))]
    differences = [
        f"{name} is {getattr(theirs, name, None)!r}, the settings say {getattr(config, name)!r}"
        for name in compared
        if getattr(theirs, name, None) != getattr(config, name, None)
    ]
    if differences:
        raise InputError(f"{path}: {'; '.join(differences)}; correct the model's arguments in params/scales")


def import_gguf(model: Any, path: Path, out: Path) -> None:
    """Load a GGUF file's dequantized weights into ``model``, and write its tokenizer to ``out`` in our form.

    GGUF, llama.cpp's format, has quantized weights, architecture and tokenizer in one file; transformers reads it
    through the package ``gguf``. The weights become float32. This dequantized network is then quantized, and
    "full precision" refers to it.

    Raises:
        InputError: the architecture differs.
    """
    named: Any = {"gguf_file": path.name, **LOCAL}
    with contextlib.redirect_stderr(io.StringIO()):  # progress bars
        network: Any = AutoModelForCausalLM.from_pretrained(path.parent, dtype="float32", **named)
        tokenizer = AutoTokenizer.from_pretrained(path.parent, **named).backend_tokenizer
    check_same(model.config, network.config, path)
    load_into(model, network.state_dict(), str(path))
    tokenizer_files.check_vocabulary(model, tokenizer, path)
    write_text(out / TOKENIZER, tokenizer_files.padded(tokenizer).to_str(pretty=True))
