"""Text to token ids: padded arrays of texts and pairs, and blocks of equal length."""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from flexround.errors import InputError

CHUNK = 1024  # texts tokenized at once: the tokenizer's result is many times larger than the ids


@dataclasses.dataclass(frozen=True)
class Encoded:
    """Token ids of N texts or pairs, padded on the right to T tokens.

    Attributes:
        ids: int32 (N, T).
        types: int8 (N, T), 1 for the second text's tokens if the tokenizer distinguishes the two texts.
        mask: bool (N, T), True for real tokens.
    """

    ids: np.ndarray
    types: np.ndarray
    mask: np.ndarray


def encode(tokenizer: Tokenizer, first: Sequence[str], second: Sequence[str] | None, length: int) -> Encoded:
    """Encode texts, or pairs as the tokenizer joins them.

    An input that is too long loses tokens one by one, each from the end of the longer text. The tokenizer keeps
    truncating and padding to ``length`` afterwards; without a padding token it pads with token 0.
    """
    tokenizer.enable_truncation(length, strategy="longest_first")
    padding = {"length": length, "direction": "right", "pad_to_multiple_of": None}
    tokenizer.enable_padding(**(tokenizer.padding or {}) | padding)
    encoded = Encoded(*(np.zeros((len(first), length), kind) for kind in (np.int32, np.int8, bool)))
    texts = list(first) if second is None else list(zip(first, second, strict=True))
    for start in range(0, len(texts), CHUNK):
        rows = slice(start, start + CHUNK)
        chunk = tokenizer.encode_batch_fast(texts[rows])
        encoded.ids[rows] = [row.ids for row in chunk]
        encoded.types[rows] = [row.type_ids for row in chunk]
        encoded.mask[rows] = [row.attention_mask for row in chunk]
    return encoded


def check_positions(model: Any, length: int) -> None:
    """Raise InputError if a transformers model has fewer than ``length`` positions."""
    positions = getattr(model.config, "max_position_embeddings", length)  # BLOOM has no limit
    if length > positions:
        raise InputError(f"length={length}: the model has {positions} positions; choose at most that")


def pad_alike(model: Any, tokenizer: Tokenizer) -> None:
    """Tell a decoder's classifier, which reads the last non-padding token, the padding token of :func:`encode`."""
    model.config.pad_token_id = (tokenizer.padding or {}).get("pad_id", 0)


def blocks(
    texts: Iterable[str], tokenizer: Tokenizer, size: int, count: int, joined: int | None = None
) -> Iterator[np.ndarray]:
    """Tokenize texts one by one, join them and cut them into blocks; the tail is dropped.

    Args:
        texts: the texts, read lazily.
        tokenizer: adds its special tokens to each text; loses its padding and truncation.
        size: tokens per block.
        count: blocks yielded at a time.
        joined: number of texts joined into a group whose tail is dropped; run_clm's is 1000. None: all texts.

    Yields:
        int32 (count, size); the last array may have fewer rows.

    Raises:
        InputError: the texts are shorter than one block.
    """
    tokenizer.no_padding()
    tokenizer.no_truncation()
    remaining, done, rest = iter(texts), 0, np.zeros(0, np.int32)
    while rows := list(itertools.islice(remaining, joined or CHUNK)):
        encoded = tokenizer.encode_batch_fast(rows)
        rest = np.concatenate([rest, *(np.array(row.ids, np.int32) for row in encoded)])
        if joined:
            rest = rest[: len(rest) // size * size]
        while len(rest) >= count * size:
            yield rest[: count * size].reshape(count, size)
            rest, done = rest[count * size :], done + count
    if whole := len(rest) // size:
        yield rest[: whole * size].reshape(whole, size)
    elif not done:
        raise InputError(f"{len(rest)} tokens of text are less than one block, block_size={size}; lower it or add text")
