"""The paper's contradictions: ``params/errata.csv``."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from flexround.results.paper_numbers import Key
from flexround.settings.layout import PARAMS

FILE = PARAMS / "errata.csv"
COPY = "copied row"


class Erratum(NamedTuple):
    """A line of ``errata.csv``: a number, or row of numbers (which begins with it), and what is wrong."""

    kind: str
    table: int
    row: int
    section: str
    method: str
    bits: str
    column: str
    metric: str
    value: str
    text: str


def text(published: bool) -> str:
    """Return the errata as CSV; a scale without published numbers has none."""
    return FILE.read_text(encoding="utf-8") if published else ",".join(Erratum._fields) + "\n"


def without_copies(numbers: Mapping[Key, float], errata: Iterable[Erratum]) -> dict[Key, float]:
    """Return the published numbers that may be compared with others: all but those of copied rows."""
    copied = {(erratum.table, erratum.row) for erratum in errata if erratum.kind == COPY}
    return {key: value for key, value in numbers.items() if key[:2] not in copied}
