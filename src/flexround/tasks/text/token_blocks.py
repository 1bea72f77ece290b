"""Texts as blocks of token ids, as language models read them."""

import itertools
from collections.abc import Iterable, Iterator

import numpy as np
from tokenizers import Tokenizer

from flexround.errors import InputError

CHUNK = 1024  # rows tokenized, or blocks joined, at once


def blocks(
    texts: Iterable[str], tokenizer: Tokenizer, size: int, count: int, what: str, joined: int | None = None
) -> Iterator[np.ndarray]:
    """Tokenize texts one by one, join them and cut them into blocks; the tail is dropped.

    Args:
        texts: read as they are needed.
        tokenizer: adds to each text what it adds; loses its padding and truncation.
        size: tokens of a block.
        count: blocks at a time.
        what: the texts, for the message.
        joined: texts that are joined, as run_clm joins 1000; the tail of each such group is dropped. None: all texts.

    Yields:
        int32 (count, size), at last fewer.

    Raises:
        InputError: there is not one block.
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
        raise InputError(f"{what}: {len(rest)} tokens are less than one block, block_size={size}; lower it or add text")
