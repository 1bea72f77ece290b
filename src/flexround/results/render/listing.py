"""What a cell of a listing in HTML is: its text, where it leads, and what is drawn beside or behind it."""

import json
import re
from typing import Any, NamedTuple


class Strip(NamedTuple):
    """Points on a line whose middle is 0 and whose ends are -100 and 100, with a bar on both sides of the first."""

    points: tuple[float, ...]
    bar: float = 0.0
    verdict: str = ""


class Cell(NamedTuple):
    """A text, the identifier on the page that it links to, a strip beside it, and the length of a bar behind it."""

    text: str
    link: str = ""
    drawn: Strip | None = None
    share: int | None = None  # percent of the cell

    @property
    def is_number(self) -> bool:
        """Whether the text begins with a number, or is none."""
        return not re.match(r"(?![+-]?\d)[^-—]", self.text)

    def __str__(self) -> str:
        return self.text


def as_cell(value: Any) -> Cell:
    """Return a value as a cell: nothing for None, facts in one line, numbers and truth values as in JSON."""
    return value if isinstance(value, Cell) else Cell(_inline(value))


def _inline(value: Any) -> str:
    """Return a value in one line."""
    if value is None:
        return ""
    if isinstance(value, dict):
        return ", ".join(f"{key}: {_inline(each)}" for key, each in value.items())
    if isinstance(value, list):
        return ", ".join(map(_inline, value))
    return json.dumps(value) if isinstance(value, bool) else str(value)
