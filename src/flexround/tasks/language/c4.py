"""Documents of C4 to calibrate on, from the shards ``c4-train.NNNNN-of-01024.json.gz`` of its English variant."""

import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np

from flexround.errors import InputError
from flexround.machine.seeding import derive

SHARDS = 1024
RELEASED = 0.01  # of the first shard, what the authors' code reads
Rule = Literal["paper", "release"]


def read(root: Path, rule: Rule, shards: int, count: int) -> list[dict[str, str]]:
    """Read documents.

    Args:
        root: the data set; its shards lie in ``root/en``.
        rule: ``paper``, random documents in random order; ``release``, the first 1 % of the first shard in its order.
        shards: of ``paper``: the documents come from the first shards, all of which must be there.
        count: of ``paper``: number of documents; all of them where there are fewer.

    Returns:
        Rows ``{"text": ...}``.

    Raises:
        InputError: missing or damaged shards, lines without a text.
    """
    numbers = range(shards if rule == "paper" else 1)
    files = [root / f"en/c4-train.{number:05}-of-{SHARDS:05}.json.gz" for number in numbers]
    if missing := [path for path in files if not path.is_file()]:
        raise InputError(f"{missing[0]}: missing; params/sources.yaml says where to get C4")
    total = sum(1 for path in files for _ in _lines(path))
    if not total:
        raise InputError(f"{files[0]}: no documents; fetch it again")
    if rule == "release":
        chosen = np.arange(max(1, round(RELEASED * total)))
    else:
        chosen = np.random.default_rng(derive("c4 documents")).permutation(total)[:count]
    wanted, found = set(chosen.tolist()), {}
    for index, (where, line) in enumerate(line for path in files for line in _lines(path)):
        if index in wanted:
            found[index] = {"text": _document(line, where)}
    return [found[index] for index in chosen.tolist()]


def _lines(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the place and the content of each line of a shard."""
    try:
        with gzip.open(path) as file:
            yield from ((f"{path}, line {number}", line) for number, line in enumerate(file, start=1))
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path}: damaged or not whole ({error}); fetch it again") from error


def _document(line: bytes, where: str) -> str:
    """Return the text of a line; ``where`` is for messages."""
    try:
        text = json.loads(line)["text"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(f"{where}: not a document of C4 ({error!r}); fetch the shard again") from error
    if not isinstance(text, str):
        raise InputError(f"{where}: its text is {text!r}; fetch the shard again")
    return text
