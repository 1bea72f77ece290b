"""A CSV as typed lines: it is read once, and what works with its numbers does not parse them again."""

import csv
import functools
import typing
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from flexround.errors import InputError
from flexround.io import artifacts

L = TypeVar("L", bound=tuple[Any, ...])


class Printed(float):
    """A number that is computed with as a float and shown as the CSV has it: with its decimals, or as 2e-5."""

    text: str

    def __new__(cls, text: str) -> "Printed":
        """Keep the text beside the number."""
        made = super().__new__(cls, text)
        made.text = text
        return made

    def __str__(self) -> str:
        return self.text

    def __bool__(self) -> bool:
        """Say that the number is there: only a missing one, None, is false."""
        return True


kinds_of = functools.cache(typing.get_type_hints)  # of the fields of a line; slow, and asked for each line
KINDS: Mapping[object, Callable[[str], object]] = {
    str: str,
    int: int,
    float: float,
    Printed: Printed,
    bool: lambda text: bool(int(text)),
    int | None: lambda text: int(text) if text else None,
    bool | None: lambda text: bool(int(text)) if text else None,
    Printed | None: lambda text: Printed(text) if text else None,
}


def load(path: Path, line: type[L], remedy: str) -> list[L]:
    """Return the lines of a CSV file, see :func:`read`; lines that start with # tell its source.

    Raises:
        InputError: the file is missing or damaged.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: missing or not UTF-8; {remedy}") from error
    return read("\n".join(of for of in text.splitlines() if not of.startswith("#")), line, str(path), remedy)


def load_made(path: Path, line: type[L]) -> list[L]:
    """Return the lines of a CSV file that this project writes; none if it isn't made.

    Raises:
        InputError: it is damaged, or of another version.
    """
    return read(artifacts.read_text(path), line, str(path)) if path.exists() else []


def read(text: str, line: type[L], name: str, remedy: str = "make it again") -> list[L]:
    """Return the lines of a CSV, ``name`` and ``remedy`` are for errors: what it is called, and what helps.

    A ``line`` is a NamedTuple whose fields are the columns, see :func:`columns`; their types are keys of ``KINDS``.

    Raises:
        InputError: other columns, a line of another length, or text in a column of numbers.
    """
    kinds = columns(line)
    try:
        header, *rows = list(csv.reader(text.splitlines())) or [[]]
    except csv.Error as error:
        raise InputError(f"{name}: {error}; {remedy}") from error
    if header != list(kinds):
        raise InputError(f"{name} with columns {header}: made by another version; {remedy}")
    found = []
    for number, row in enumerate(rows, 1):
        if len(row) != len(kinds):
            raise InputError(f"{name}: entry {number} has not as many cells as there are columns; {remedy}")
        values = []
        for (column, kind), cell in zip(kinds.items(), row, strict=True):
            try:
                values.append(KINDS[kind](cell))
            except ValueError as error:
                raise InputError(f"{name}: entry {number}: {column} = {cell!r} is no number; {remedy}") from error
        found.append(_filled(line, iter(values)))
    return found


def columns(line: type[L]) -> dict[str, object]:
    """Return the columns of a line in order, with their types; a field that is a NamedTuple stands for its own."""
    found: dict[str, object] = {}
    for name, kind in kinds_of(line).items():
        found |= columns(kind) if hasattr(kind, "_fields") else {name: kind}
    return found


def _filled(line: type[L], values: Iterator[object]) -> L:
    """Return a line with the values of its columns."""
    kinds = kinds_of(line).values()
    filled = (_filled(kind, values) if hasattr(kind, "_fields") else next(values) for kind in kinds)
    made: Callable[..., L] = line
    return made(*filled)
