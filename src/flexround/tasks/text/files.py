"""Files of data sets: lines of text, and parquet as the Hugging Face hub stores it."""

import bz2
import gzip
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pyarrow import parquet

from flexround.errors import InputError

OPENERS: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open}


def lines(path: Path) -> Iterator[str]:
    r"""Yield the lines of a UTF-8 file, which may be compressed by gzip or bzip2.

    Lines end with ``\n`` alone, which is part of the text: other separators may stand inside a line.
    """
    with OPENERS.get(path.suffix, open)(path, "rt", encoding="utf-8", newline="\n") as file:
        yield from file


def table(folder: Path, split: str, columns: Sequence[str]) -> list[dict[str, Any]]:
    """Return the rows of a split, with these columns in this order.

    Args:
        folder: where ``SPLIT.parquet`` or its shards ``SPLIT-*.parquet`` are, or else in the first folder of it that
            has some. Their names may begin with more, as in ``piqa_train.parquet``.
        split: its name.
        columns: of every file.

    Raises:
        InputError: the split or one of its shards is missing.
    """
    rows = (parquet.read_table(path, columns=list(columns)).to_pylist() for path in _files(folder, split))
    return list(itertools.chain.from_iterable(rows))


def _files(folder: Path, split: str) -> list[Path]:
    """Return the file of a split, or its shards in order."""
    places = (folder, *sorted(path for path in folder.glob("*") if path.is_dir()))
    for place, name in itertools.product(places, (split, f"*_{split}")):
        found = sorted(place.glob(f"{name}.parquet")) or sorted(place.glob(f"{name}-*.parquet"))
        if found:
            total = re.search(r"-of-(\d+)", found[0].name)
            if total and int(total[1]) != len(found):
                raise InputError(f"{found[0]}: is one of {int(total[1])} shards, but there are {len(found)}")
            return found
    raise InputError(
        f"{folder}: {split}.parquet and {split}-*.parquet are missing; params/sources.yaml says where to get the data"
    )
