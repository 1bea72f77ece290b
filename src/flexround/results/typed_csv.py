"""A CSV as typed lines: it is read once, and what works with its numbers does not parse them again."""

import csv
import typing
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from flexround.errors import InputError

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


KINDS: Mapping[object, Callable[[str], object]] = {
    str: str,
    int: int,
    bool: lambda text: bool(int(text)),
    int | None: lambda text: int(text) if text else None,
    bool | None: lambda text: bool(int(text)) if text else None,
    Printed | None: lambda text: Printed(text) if text else None,
}


def read(text: str, line: type[L], name: str) -> list[L]:
    """Return the lines of a CSV.

    Args:
        text: of the file.
        line: NamedTuple whose fields are the columns, in their order; its types are keys of ``KINDS``.
        name: what the file is called in errors.

    Raises:
        InputError: other columns, a line of another length, or text in a column of numbers.
    """
    kinds = typing.get_type_hints(line)
    try:
        header, *rows = list(csv.reader(text.splitlines())) or [[]]
    except csv.Error as error:
        raise InputError(f"{name}: {error}; make it again") from error
    if header != list(kinds):
        raise InputError(f"{name} with columns {header}: made by another version; make it again")
    found = []
    for number, row in enumerate(rows, 1):
        if len(row) != len(kinds):
            raise InputError(f"{name}: entry {number} has not as many cells as there are columns; make it again")
        values = {}
        for (column, kind), cell in zip(kinds.items(), row, strict=True):
            try:
                values[column] = KINDS[kind](cell)
            except ValueError as error:
                raise InputError(f"{name}: entry {number}: {column} = {cell!r} is no number; make it again") from error
        found.append(line(**values))
    return found
