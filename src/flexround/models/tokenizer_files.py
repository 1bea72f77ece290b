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
    """Read a ``tokenizer.json``."""
    return tokenizers.Tokenizer.from_file(str(path))


def find(directory: Path) -> tokenizers.Tokenizer:
    """Return the tokenizer of a Hugging Face directory.

    It comes from ``tokenizer.json`` or else, through transformers, from ``vocab.txt`` or ``vocab.json`` and
    ``merges.txt``. InputError: there is none.
    """
    if (directory / TOKENIZER).is_file():
        return load(directory / TOKENIZER)
    if not any((directory / name).is_file() for name in ("vocab.txt", "vocab.json")):
        raise InputError(f"{directory}: no tokenizer; it needs tokenizer.json, vocab.txt, or vocab.json and merges.txt")
    return AutoTokenizer.from_pretrained(directory, **LOCAL).backend_tokenizer  # its class is found by config.json


def of_gpt2(directory: Path) -> bool:
    """Say whether a directory names GPT-2's tokenizer, as SmolLM2's does: a LLaMA that has no begin of text."""
    path = directory / "tokenizer_config.json"
    return path.is_file() and str(read_json(path).get("tokenizer_class")).startswith("GPT2")


def padded(tokenizer: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """Return the tokenizer without truncation and with its padding token, if it has one: blocks of text need none.

    For GPT-2, GPT-Neo and LLaMA, which have none, that is the end of text. Saved, ``tokenizer.json`` has it too.
    """
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
