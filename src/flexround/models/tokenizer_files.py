"""Tokenizer files: read, converted from Hugging Face directories, and compared with the model they belong to."""

from pathlib import Path
from typing import Any

import tokenizers
from transformers import AutoTokenizer

from flexround.errors import InputError
from flexround.io.artifacts import read_json

TOKENIZER = "tokenizer.json"
LOCAL: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}  # for each loader of transformers
PADDING = ("[PAD]", "<pad>", "<|endoftext|>", "</s>")  # GPT-2 and LLaMA have none and pad with their end of text


def load(path: Path) -> tokenizers.Tokenizer:
    """Read a ``tokenizer.json``; InputError if it is missing or damaged."""
    if not path.is_file():
        raise InputError(f"{path}: missing; put the tokenizer of the model there")
    try:
        found = tokenizers.Tokenizer.from_file(str(path))
        # One whose parts don't fit together is read, and ends in a panic when it is used.
        found.encode("a"), found.encode("a", "b")
    except BaseException as error:  # tokenizers raises nothing more special, and panics are no Exceptions
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise InputError(f"{path}: not a tokenizer: {error}; delete it and fetch it again") from error
    return found


def find(directory: Path) -> tokenizers.Tokenizer:
    """Return the tokenizer of a Hugging Face directory.

    It comes from ``tokenizer.json`` or else, through transformers, from ``vocab.txt`` or ``vocab.json`` and
    ``merges.txt``. InputError: there is none, or a damaged one.
    """
    if (directory / TOKENIZER).is_file():
        return load(directory / TOKENIZER)
    if not any((directory / name).is_file() for name in ("vocab.txt", "vocab.json")):
        raise InputError(f"{directory}: no tokenizer; it needs tokenizer.json, vocab.txt, or vocab.json and merges.txt")
    try:  # the class of a slow tokenizer is found by the model's config.json
        return AutoTokenizer.from_pretrained(directory, **LOCAL).backend_tokenizer
    except Exception as error:  # whatever the class raises on other people's files
        raise InputError(f"{directory}: transformers can't read the tokenizer: {error}") from error


def of_gpt2(directory: Path) -> bool:
    """Say whether a directory names GPT-2's tokenizer, as SmolLM2's does: a LLaMA that has no begin of text."""
    path = directory / "tokenizer_config.json"
    return path.is_file() and str(read_json(path).get("tokenizer_class")).startswith("GPT2")


def tokenizer_file(directory: Path) -> tokenizers.Tokenizer:
    """Return the tokenizer of a Hugging Face directory; saved, its ``tokenizer.json`` is complete on its own.

    The padding token becomes part of it; for GPT-2, GPT-Neo and LLaMA, which have none, that is the end of text.

    Raises:
        InputError: no tokenizer, or a damaged one.
    """
    return padded(find(directory))


def padded(tokenizer: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """Return the tokenizer without truncation and with its padding token, if it has one: blocks of text need none."""
    tokenizer.no_truncation()
    for token in PADDING:
        if (number := tokenizer.token_to_id(token)) is not None:
            tokenizer.enable_padding(pad_id=number, pad_token=token)
            break
    return tokenizer


def check_vocabulary(model: Any, tokenizer: tokenizers.Tokenizer, where: Path) -> None:
    """Raise InputError if the tokenizer of ``where`` has more tokens than a transformers model has embeddings."""
    tokens, rows = tokenizer.get_vocab_size(), model.config.vocab_size
    if tokens > rows:
        raise InputError(f"{where}: has {tokens} tokens, the model's vocab_size is {rows}; they don't belong together")


def check_begin(model: Any, tokenizer: tokenizers.Tokenizer, where: Path) -> None:
    """Raise InputError unless a LLaMA's tokenizer puts the begin of text, and nothing else, around each text.

    It also tells " a" from "a", as SentencePiece does: answers to questions are scored after a space.
    """
    if model.config.model_type != "llama":
        return
    begin, added = model.config.bos_token_id, tokenizer.encode("").ids
    if added != [begin]:
        raise InputError(
            f"{where}: the tokenizer adds the tokens {added} to a text; a LLaMA's adds its begin of text, [{begin}]: "
            "convert it again with add_bos_token"
        )
    word, after_space = (tokenizer.encode(text, add_special_tokens=False).tokens for text in ("a", " a"))
    if word == after_space:
        raise InputError(
            f"{where}: the tokenizer gives {word} for 'a' and for ' a'; a LLaMA's keeps the space: take the "
            'tokenizer.json that transformers 4 wrote (normalizer: Prepend "▁", Replace " "), not one that a later '
            "version saved again"
        )
