"""Files of data sets: text, and splits as the Hugging Face hub stores them, ``SPLIT.parquet`` or in shards."""

import itertools
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pyarrow import ArrowException, parquet

from flexround.errors import InputError


def find(directories: Iterable[Path], *names: str) -> list[Path]:
    """Return the files of a split in order, from the first directory that has one of its names; none if none does.

    Raises:
        InputError: some shards are missing.
    """
    for directory, name in itertools.product(directories, names):
        if (whole := directory / f"{name}.parquet").is_file():
            return [whole]
        shards = sorted(directory.glob(f"{name}-*.parquet"))
        for shard in shards:
            total = re.search(r"-of-(\d+)(?:-\w+)?\.parquet$", shard.name)
            if total and int(total[1]) != len(shards):
                there = f"{int(total[1])} shards, but there are {len(shards)}"
                raise InputError(f"{shard}: is one of {there}; fetch them all")
        if shards:
            return shards
    return []


def read(paths: list[Path], needed: Sequence[str]) -> list[dict[str, Any]]:
    """Read the rows of files that ``find`` found, with all their columns.

    Raises:
        InputError: a damaged file, or one without a column that is needed.
    """
    rows: list[dict[str, Any]] = []
    for path in paths:
        try:
            table = parquet.read_table(path)
            found = table.to_pylist()
        except (ArrowException, OSError, ValueError) as error:  # texts are decoded when they are taken out
            raise InputError(f"{path}: not a readable parquet file ({error}); fetch it again") from error
        check_columns(path, needed, table.column_names)
        rows += found
    return rows


def decoded(path: Path) -> str:
    """Return the text of a UTF-8 file, its line ends and byte order mark as they are.

    Raises:
        InputError: it is not UTF-8.
    """
    data = path.read_bytes()
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputError(f"{path}, line {line}: not UTF-8 ({error.reason}); fetch it again or convert it") from error


def check_columns(path: Path, needed: Sequence[str], there: Sequence[str]) -> None:
    """Check that a file has the columns that are needed.

    Raises:
        InputError: it lacks some.
    """
    if lacking := [name for name in needed if name not in there]:
        raise InputError(f"{path}: no column {', '.join(lacking)}; it has {', '.join(there)}")
