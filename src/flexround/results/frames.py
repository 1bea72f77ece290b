"""Tables as DataFrames of printed values: numbers are text with fixed decimals; missing numbers are empty.

So a DataFrame equals the one read back from its CSV, and no number changes in between.
"""

import io
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd

from flexround.errors import InputError

L = TypeVar("L", bound=tuple[Any, ...])
FORMULA = re.compile(r"[=+@]|-[^-.\d]")


def made(lines: Iterable[Mapping[str, object]], columns: Sequence[str]) -> pd.DataFrame:
    """Return lines as a DataFrame with these columns; a column that a line lacks is empty.

    Text that a spreadsheet would compute as a formula gets an apostrophe in front.
    """
    return pd.DataFrame([[_plain(line.get(name, "")) for name in columns] for line in lines], columns=list(columns))


def _plain(value: object) -> object:
    """Return text on one line that is never a formula; return a number unchanged."""
    if not isinstance(value, str):
        return value
    text = " ".join(value.splitlines()).strip()
    return f"'{text}" if FORMULA.match(text) else text


def text(frame: pd.DataFrame) -> str:
    """Return the CSV of a DataFrame, byte-stable."""
    return frame.to_csv(index=False, lineterminator="\n")


def read(path: Path | io.StringIO, line: type[L], remedy: str = "make it again") -> pd.DataFrame:
    """Read a CSV whose columns are the fields of ``line``, with their types.

    Raises:
        InputError: the file is missing, damaged or of another version.
    """
    kinds: Mapping[str, type] = line.__annotations__
    try:
        frame = pd.read_csv(path, dtype=kinds, keep_default_na=False)
    except (FileNotFoundError, ValueError) as error:
        raise InputError(f"{path}: {error}; {remedy}") from error
    if list(frame.columns) != list(kinds):
        raise InputError(f"{path} with columns {list(frame.columns)}: made by another version; {remedy}")
    return frame


def lines(frame: pd.DataFrame, line: type[L]) -> list[L]:
    """Return the rows of a DataFrame as named tuples."""
    return [line(*row) for row in frame.itertuples(index=False, name=None)]


def load(path: Path, line: type[L]) -> list[L]:
    """Return the rows of a CSV that this project writes; none if the file is missing."""
    return lines(read(path, line), line) if path.exists() else []
