"""Files of data sets as records, each with its place for messages: lines of text, and parquet as the hub stores it.

The reader of a data set says where its files lie and how a record becomes a row. Records that can't are refused here,
by file and number.
"""

import bz2
import gzip
import itertools
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pyarrow import ArrowException, parquet

from flexround.errors import InputError

Record = tuple[str, Any]  # its place, and what stands there
WHERE = "params/sources.yaml says where to get the data"
OPENERS: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open}
WRONG = (LookupError, TypeError, ValueError, ArithmeticError, AttributeError, RecursionError)  # raised by a conversion


def lines(path: Path) -> Iterator[tuple[str, str]]:
    r"""Yield the place and the text of each line of a UTF-8 file, which may be compressed by gzip or bzip2.

    Lines end with ``\n`` alone, which is part of the text: other separators may stand inside a line.

    Raises:
        InputError: the file is missing or damaged, or a line is not UTF-8.
    """
    where = str(path)
    try:
        with OPENERS.get(path.suffix, open)(path, "rb") as file:
            for number, line in enumerate(file, start=1):
                where = f"{path}, line {number}"
                yield where, line.decode()
    except FileNotFoundError as error:
        raise InputError(f"{path} is missing; {WHERE}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{where}: not UTF-8 ({error.reason}); fetch it again or convert it") from error
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path}: damaged or not whole ({error}); fetch it again") from error


def text(path: Path) -> str:
    """Return the whole text of a file; see ``lines``."""
    return "".join(line for _, line in lines(path))


def table(folder: Path, split: str, columns: Sequence[str], hint: str = WHERE) -> tuple[Path, list[Record]]:
    """Return the first file of a split, for messages, and its rows with all their columns.

    Args:
        folder: where ``SPLIT.parquet`` or its shards ``SPLIT-*.parquet`` lie, or else in the first folder of it that
            has some. Their names may begin with more, as in ``piqa_train.parquet``.
        split: its name.
        columns: needed of every file.
        hint: what to do where the split is missing.

    Raises:
        InputError: the split or one of its shards is missing, two files may be it, or one is damaged or lacks a column.
    """
    if not (files := _split_files(folder, split)):
        raise InputError(f"{folder}: {split}.parquet and {split}-*.parquet are missing; {hint}")
    records = [(f"{path}, example {index}", row) for path in files for index, row in enumerate(_rows(path, columns))]
    return files[0], records


def texts(record: Any, columns: Iterable[str]) -> dict[str, str]:
    """Return columns of a record, each of which must hold text. Raises ValueError where one does not."""
    found = {column: record[column] for column in columns}
    for column, value in found.items():
        if not isinstance(value, str):
            raise ValueError(f"{column} is {value!r}, no text")
    return found


def converted(path: Path, records: Iterable[Record], convert: Callable[[Any], Any], what: str) -> list[Any]:
    """Return a row for each record of a file, without those that ``convert`` gives None for.

    Raises:
        InputError: no row, or a record that ``convert`` raises one of ``WRONG`` for, because it is not ``what``.
    """
    rows = []
    for where, record in records:
        try:
            row = convert(record)
        except WRONG as error:
            reason = error if isinstance(error, ValueError) else repr(error)
            raise InputError(f"{where}: not {what} ({reason}); mend it or fetch it again") from error
        if row is not None:
            rows.append(row)
    if not rows:
        raise InputError(f"{path}: nothing that is {what}; fetch it again")
    return rows


def _split_files(folder: Path, split: str) -> list[Path]:
    """Return the file of a split, or its shards in order; none if there are none."""
    places = (folder, *sorted(path for path in folder.glob("*") if path.is_dir()))
    for place, name in itertools.product(places, (split, f"*_{split}")):
        whole, shards = sorted(place.glob(f"{name}.parquet")), sorted(place.glob(f"{name}-*.parquet"))
        if len(whole) > 1:
            raise InputError(f"{whole[0]}: {whole[1].name} beside it may be the split {split}, too; leave one of them")
        for shard in [] if whole else shards:
            total = re.search(r"-of-(\d+)(?:-\w+)?\.parquet$", shard.name)
            if total and int(total[1]) != len(shards):
                there = f"{int(total[1])} shards, but there are {len(shards)}"
                raise InputError(f"{shard}: is one of {there}; fetch them all")
        if whole or shards:
            return whole or shards
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
