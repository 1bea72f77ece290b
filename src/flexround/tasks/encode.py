"""Text to token ids: padded arrays of texts and pairs, and blocks of equal length."""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from flexround.errors import InputError
from flexround.models import tokenizer_files

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
    truncating and padding to ``length`` afterwards.

    Raises:
        InputError: the tokenizer has no padding token.
    """
    if tokenizer.padding is None:
        raise InputError(
            f"the tokenizer.json has no padding token, none of {', '.join(tokenizer_files.PADDING)}; add one to the "
            "tokenizer of the network's source"
        )
    tokenizer.enable_truncation(length, strategy="longest_first")
    tokenizer.enable_padding(**tokenizer.padding | {"length": length, "direction": "right", "pad_to_multiple_of": None})
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
    """Check that a transformers model has a position for each of ``length`` tokens.

    Raises:
        InputError: the model has fewer positions.
    """
    positions = getattr(model.config, "max_position_embeddings", length)  # BLOOM has no limit
    if length > positions:
        raise InputError(f"length={length}: the model has {positions} positions; choose at most that")


def check_padding(model: Any, tokenizer: Tokenizer, where: Path) -> None:
    """Check that a decoder's classifier, which reads the last non-padding token, knows the tokenizer's padding token.

    Raises:
        InputError: the model uses another padding token.
    """
    padding = (tokenizer.padding or {}).get("pad_id")
    if not hasattr(model.config, "type_vocab_size") and model.config.pad_token_id != padding:
        raise InputError(
            f"{where}: pads with token {padding}, the model's pad_token_id is {model.config.pad_token_id}; give "
            f"pad_token_id: {padding} among the model's args in the scale's file"
        )


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
