"""Read tokenizer files, convert them from Hugging Face directories, and compare them with their model."""

from pathlib import Path
from typing import Any

import tokenizers
from transformers import AutoTokenizer

from flexround.errors import InputError
from flexround.io.artifacts import read_json

TOKENIZER = "tokenizer.json"
LOCAL: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}  # arguments of every transformers loader
PADDING = ("[PAD]", "<pad>", "<|endoftext|>", "</s>")  # GPT-2 and LLaMA pad with their end of text


def load(path: Path) -> tokenizers.Tokenizer:
    """Read a ``tokenizer.json``."""
    return tokenizers.Tokenizer.from_file(str(path))


def find(directory: Path) -> tokenizers.Tokenizer:
    """Return the tokenizer of a Hugging Face directory.

    The source is ``tokenizer.json`` or else, through transformers, ``vocab.txt`` or ``vocab.json`` and
    ``merges.txt``. InputError: the directory has no tokenizer.
    """
    if (directory / TOKENIZER).is_file():
        return load(directory / TOKENIZER)
    if not any((directory / name).is_file() for name in ("vocab.txt", "vocab.json")):
        raise InputError(f"{directory}: no tokenizer; it needs tokenizer.json, vocab.txt, or vocab.json and merges.txt")
    return AutoTokenizer.from_pretrained(directory, **LOCAL).backend_tokenizer  # config.json names its class


def of_gpt2(directory: Path) -> bool:
    """Return whether a directory names GPT-2's tokenizer, as SmolLM2's does: a LLaMA without begin of text."""
    path = directory / "tokenizer_config.json"
    return path.is_file() and str(read_json(path).get("tokenizer_class")).startswith("GPT2")


def padded(tokenizer: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """Return the tokenizer without truncation and with padding, if it has a token for it; text blocks need no padding.

    GPT-2, GPT-Neo and LLaMA have no padding token and use the end of text. ``tokenizer.json`` stores the choice.
    """
    tokenizer.no_truncation()
    for token in PADDING:
        if (number := tokenizer.token_to_id(token)) is not None:
            tokenizer.enable_padding(pad_id=number, pad_token=token)
            break
    return tokenizer


def check_vocabulary(model: Any, tokenizer: tokenizers.Tokenizer, where: Path) -> None:
    """Raise InputError if the tokenizer at ``where`` has more tokens than a transformers model has embeddings."""
    tokens, rows = tokenizer.get_vocab_size(), model.config.vocab_size
    if tokens > rows:
        raise InputError(f"{where}: has {tokens} tokens, the model's vocab_size is {rows}; they don't belong together")


def check_begin(model: Any, tokenizer: tokenizers.Tokenizer, where: Path) -> None:
    """Raise InputError unless a LLaMA's tokenizer adds the begin of text, and nothing else, to each text.

    The tokenizer must also distinguish " a" from "a", as SentencePiece does: answers are scored after a space.
    """
    if model.config.model_type != "llama":
        return
    begin, added = model.config.bos_token_id, tokenizer.encode("").ids
    word, after_space = (tokenizer.encode(text, add_special_tokens=False).tokens for text in ("a", " a"))
    if added != [begin] or word == after_space:
        raise InputError(
            f"{where}: the tokenizer adds {added} to a text and gives {word} for 'a', {after_space} for ' a'; a "
            f"LLaMA's adds its begin of text, [{begin}], and keeps the space, as in files that transformers 4 wrote"
        )
