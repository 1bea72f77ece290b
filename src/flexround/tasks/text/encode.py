"""Text to token ids: tokenizer files, and pairs of sentences as fixed-length arrays."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from transformers import AutoTokenizer

from flexround.errors import InputError

_PADDING = ("[PAD]", "<pad>", "<|endoftext|>", "</s>")  # GPT-2 and LLaMA have none and pad with their end of text
_CHUNK = 4096  # texts encoded at once: what the tokenizer returns for each is many times the size of its ids


@dataclasses.dataclass(frozen=True)
class Encoded:
    """Token ids of N texts or pairs, padded on the right to T tokens.

    Attributes:
        ids: int32 (N, T).
        types: int8 (N, T), 1 for the tokens of the second text where the tokenizer tells them apart.
        mask: bool (N, T), True for real tokens.
    """

    ids: np.ndarray
    types: np.ndarray
    mask: np.ndarray


def load(path: Path) -> tokenizers.Tokenizer:
    """Read a ``tokenizer.json``.

    Raises:
        InputError: missing or damaged.
    """
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
    ``merges.txt``.

    Raises:
        InputError: no tokenizer, or a damaged one.
    """
    whole = directory / "tokenizer.json"
    return load(whole) if whole.is_file() else _convert(directory)


def tokenizer_file(directory: Path) -> tokenizers.Tokenizer:
    """Return the tokenizer of a Hugging Face directory; saved, its ``tokenizer.json`` is complete on its own.

    The padding token becomes part of it; for GPT-2 and LLaMA that is the end of text, as in Hugging
    Face's example scripts.

    Raises:
        InputError: no tokenizer, a damaged one, or one without a token to pad with.
    """
    tokenizer = find(directory)
    tokenizer.no_truncation()
    for token in _PADDING:
        if (number := tokenizer.token_to_id(token)) is not None:
            tokenizer.enable_padding(pad_id=number, pad_token=token)
            return tokenizer
    raise InputError(f"{directory}: the tokenizer has none of the padding tokens {', '.join(_PADDING)}; add one")


def encode(tokenizer: tokenizers.Tokenizer, first: Sequence[str], second: Sequence[str] | None, length: int) -> Encoded:
    """Encode texts, or pairs joined as the tokenizer joins them.

    What is too long loses tokens at the end of the longer of the two texts, one by one.

    Args:
        tokenizer: with a padding token; it stays as it is.
        first: N texts.
        second: the N other texts, or None.
        length: T.

    Raises:
        InputError: the tokenizer has no padding token, or ``length`` has no room for text.
    """
    if tokenizer.padding is None:
        raise InputError(
            "the tokenizer.json has no padding token; write it with flexround.tasks.text.encode.tokenizer_file"
        )
    special = tokenizer.num_special_tokens_to_add(second is not None)
    if length <= special:
        raise InputError(f"length={length}: {special} special tokens leave no room for text; choose a greater length")
    padding = tokenizer.padding | {"length": length, "direction": "right", "pad_to_multiple_of": None}
    tokenizer = tokenizers.Tokenizer.from_str(tokenizer.to_str())
    tokenizer.enable_truncation(length, strategy="longest_first")
    tokenizer.enable_padding(**padding)
    encoded = Encoded(*(np.zeros((len(first), length), kind) for kind in (np.int32, np.int8, bool)))
    texts = list(first) if second is None else list(zip(first, second, strict=True))
    for start in range(0, len(texts), _CHUNK):
        rows = slice(start, start + _CHUNK)
        chunk = tokenizer.encode_batch_fast(texts[rows])
        encoded.ids[rows] = [row.ids for row in chunk]
        encoded.types[rows] = [row.type_ids for row in chunk]
        encoded.mask[rows] = [row.attention_mask for row in chunk]
    return encoded


def check_positions(model: Any, length: int) -> None:
    """Check that a transformers model has a position for each of ``length`` tokens.

    Raises:
        InputError: it has fewer.
    """
    positions = model.config.max_position_embeddings
    if length > positions:
        raise InputError(f"length={length}: the model has {positions} positions; choose at most that")


def check_vocabulary(model: Any, tokenizer: tokenizers.Tokenizer, where: Path) -> None:
    """Check that a transformers model has an embedding for every token; ``where`` is for the message.

    Raises:
        InputError: the tokenizer has more tokens.
    """
    tokens, rows = tokenizer.get_vocab_size(), model.config.vocab_size
    if tokens > rows:
        raise InputError(f"{where}: has {tokens} tokens, the model's vocab_size is {rows}; they don't belong together")


def check_begin(model: Any, tokenizer: tokenizers.Tokenizer, where: Path) -> None:
    """Check that a LLaMA's tokenizer puts the begin of text, and nothing else, around each text.

    Raises:
        InputError: it adds something else or nothing.
    """
    begin, added = model.config.bos_token_id, tokenizer.encode("").ids
    if model.config.model_type == "llama" and added != [begin]:
        raise InputError(
            f"{where}: the tokenizer adds the tokens {added} to a text; a LLaMA's adds its begin of text, [{begin}]: "
            "convert it again with add_bos_token"
        )


def _convert(directory: Path) -> tokenizers.Tokenizer:
    """Convert the files of a slow tokenizer; its class is found by the model's ``config.json``."""
    if not any((directory / name).is_file() for name in ("vocab.txt", "vocab.json")):
        raise InputError(f"{directory}: no tokenizer; it needs tokenizer.json, vocab.txt, or vocab.json and merges.txt")
    try:
        return AutoTokenizer.from_pretrained(directory, local_files_only=True).backend_tokenizer
    except Exception as error:  # whatever the class raises on other people's files
        raise InputError(f"{directory}: transformers can't read the tokenizer: {error}") from error
