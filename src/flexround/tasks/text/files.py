"""Files of data sets: text in UTF-8, and splits in parquet as the Hugging Face hub stores them, whole or in shards."""

import itertools
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pyarrow import ArrowException, parquet

from flexround.errors import InputError

WHERE = "params/sources.yaml says where to get the data"


def read(
    what: str,
    folders: Sequence[Path],
    names: Sequence[str],
    columns: Sequence[str],
    texts: Sequence[str] = (),
    hint: str = WHERE,
) -> tuple[Path, list[dict[str, Any]]]:
    """Read the rows of a split from ``NAME.parquet`` or its shards ``NAME-*.parquet``.

    Args:
        what: the split, for messages.
        folders: the places to look in; the first one that has the split counts.
        names: the names that the split may have there, best first.
        columns: needed of every file.
        texts: those of the columns that must hold text in every row.
        hint: what to do where the split is missing.

    Returns:
        The place of the split, for messages, and its rows with all their columns.

    Raises:
        InputError: the split or one of its shards is missing; a file is damaged or lacks a column; there are no rows,
            or one without text.
    """
    files = _find(folders, names)
    if not files:
        name = names[0]
        raise InputError(f"{folders[0]}: {what} is missing. Put {name}.parquet or {name}-*.parquet there; {hint}")
    rows = [row for path in files for row in _rows(path, columns)]
    if not rows:
        raise InputError(f"{files[0]}: no examples; fetch the data again")
    for index, row in enumerate(rows):
        for column in texts:
            if not isinstance(row[column], str):
                raise InputError(
                    f"{files[0]}: example {index}: {column} is {row[column]!r}, no text; fetch the data again"
                )
    return files[0], rows


def decoded(path: Path) -> str:
    """Return the text of a UTF-8 file, its line ends and byte order mark as they are.

    Raises:
        InputError: it is missing, or not UTF-8.
    """
    try:
        data = path.read_bytes()
        return data.decode()
    except FileNotFoundError as error:
        raise InputError(f"{path} is missing; {WHERE}") from error
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputError(f"{path}, line {line}: not UTF-8 ({error.reason}); fetch it again or convert it") from error


def _find(folders: Iterable[Path], names: Iterable[str]) -> list[Path]:
    """Return the files of a split in order, from the first folder that has one of its names; none if none does."""
    for folder, name in itertools.product(folders, names):
        if (whole := folder / f"{name}.parquet").is_file():
            return [whole]
        shards = sorted(folder.glob(f"{name}-*.parquet"))
        for shard in shards:
            total = re.search(r"-of-(\d+)(?:-\w+)?\.parquet$", shard.name)
            if total and int(total[1]) != len(shards):
                there = f"{int(total[1])} shards, but there are {len(shards)}"
                raise InputError(f"{shard}: is one of {there}; fetch them all")
        if shards:
            return shards
    return []


def _rows(path: Path, columns: Sequence[str]) -> list[dict[str, Any]]:
    """Return the rows of a parquet file that has the needed columns."""
    try:
        table = parquet.read_table(path)
        rows = table.to_pylist()
    except (ArrowException, OSError, ValueError) as error:  # texts are decoded when they are taken out
        raise InputError(f"{path}: not a readable parquet file ({error}); fetch it again") from error
    if lacking := [name for name in columns if name not in table.column_names]:
        raise InputError(f"{path}: no column {', '.join(lacking)}; it has {', '.join(table.column_names)}")
    return rows
