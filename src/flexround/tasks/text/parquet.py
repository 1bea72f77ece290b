"""Splits of a data set as the Hugging Face hub stores them: whole as ``SPLIT.parquet`` or in shards."""

import re
from pathlib import Path
from typing import Any

from pyarrow import ArrowException, parquet

from flexround.errors import InputError


def find(directory: Path, split: str) -> list[Path]:
    """Return the files of a split in order; none if it isn't there.

    Raises:
        InputError: some shards are missing.
    """
    whole = directory / f"{split}.parquet"
    if whole.is_file():
        return [whole]
    shards = sorted(directory.glob(f"{split}-*.parquet"))
    for shard in shards:
        total = re.search(r"-of-(\d+)(?:-\w+)?\.parquet$", shard.name)
        if total and int(total[1]) != len(shards):
            raise InputError(f"{shard}: is one of {int(total[1])} shards, but there are {len(shards)}; fetch them all")
    return shards


def read(paths: list[Path], needed: tuple[str, ...]) -> list[dict[str, Any]]:
    """Read the rows of files that ``find`` found, with all their columns.

    Raises:
        InputError: a damaged file, or one without a column that is needed.
    """
    rows: list[dict[str, Any]] = []
    for path in paths:
        try:
            table = parquet.read_table(path)
        except (ArrowException, OSError) as error:
            raise InputError(f"{path}: not a readable parquet file ({error}); fetch it again") from error
        check_columns(path, needed, table.column_names)
        rows += table.to_pylist()
    return rows


def check_columns(path: Path, needed: tuple[str, ...], there: list[str]) -> None:
    """Check that a file has the columns that are needed.

    Raises:
        InputError: it lacks some.
    """
    if lacking := [name for name in needed if name not in there]:
        raise InputError(f"{path}: no column {', '.join(lacking)}; it has {', '.join(there)}")
