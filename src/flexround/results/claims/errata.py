"""Where the paper's numbers contradict each other, its bold marks or its words, found from the numbers alone."""

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence, Set
from typing import NamedTuple

from flexround import metrics
from flexround.results.cells import Cell
from flexround.results.claims.verdicts import Comparison
from flexround.results.paper_numbers import DECIMALS, Key
from flexround.results.table_csv import number, write
from flexround.results.typed_csv import Printed, columns
from flexround.settings.layout import FULL_PRECISION

COPY, NOT_BEST, TIE, WORDS, ONE_EXAMPLE, TWO_NUMBERS = KINDS = (
    *("copied row", "bold is not the best", "tie in bold"),
    *("contradicts the words", "a win of one example", "two numbers for one run"),
)
COPIED = 3  # rows that share fewer numbers may agree by chance


class Erratum(NamedTuple):
    """A line of ``errata.csv``: a number, or row of numbers (``key`` names its first), and what is wrong."""

    kind: str
    key: Key
    value: Printed
    text: str


class Paper(NamedTuple):
    """The published numbers, which are bold, and the cell (with run and metric of the task) of each; see `printed`."""

    cells: Sequence[Cell]
    numbers: Mapping[Key, float]
    bold: Set[Key]

    def value(self, cell: Cell) -> float:
        """Return the published number of a cell."""
        return self.numbers[cell.key]

    def rank(self, cell: Cell) -> float:
        """Return the published number of a cell, negated where lower is better."""
        return metrics.of(cell.key.metric).sign * self.value(cell)

    def erratum(self, kind: str, cell: Cell, text: str) -> Erratum:
        """Return what is wrong with the number of a cell."""
        return Erratum(kind, cell.key, Printed(number(self.value(cell))), text)


def printed(cells: Iterable[Cell], numbers: Mapping[Key, float], bold: Set[Key]) -> Paper:
    """Return the paper's numbers with their cells; the project's own cells, which have none, are left out."""
    return Paper([cell for cell in cells if cell.key in numbers], numbers, bold)


def find(paper: Paper, comparisons: Iterable[Comparison], examples: Mapping[str, Mapping[str, int]]) -> list[Erratum]:
    """Return all errata, by kind, then in the paper's order; ``examples`` are task -> metric -> test examples."""
    marks, words = bold_marks(paper, examples), contradictions(comparisons, paper)
    errata = [*copied_rows(paper), *marks, *words, *two_numbers(paper)]
    return sorted(errata, key=lambda erratum: (KINDS.index(erratum.kind), erratum.key.table, erratum.key.row))


def copied_rows(paper: Paper) -> Iterator[Erratum]:
    """Yield rows all of whose numbers are those of other runs, printed more often elsewhere."""
    printed = Counter(_identity(cell) for cell in paper.cells)
    rows = list(_grouped(paper.cells, lambda cell: (cell.key.table, cell.key.row)).values())
    for row in rows:
        origins = [other for other in rows if other is not row and _copies(row, other, paper)]
        if origins and printed[_identity(row[0])] <= max(printed[_identity(other[0])] for other in origins):
            places = ", ".join(f"table {other[0].key.table} row {other[0].key.row}" for other in origins)
            method = origins[0][0].key.method
            text = f"All numbers of the row are those of {method} in {places}, which are other runs."
            yield paper.erratum(COPY, row[0], text)


def without_copies(paper: Paper) -> dict[Key, float]:
    """Return the published numbers that may be compared with others: all but those of copied rows."""
    copied = {(erratum.key.table, erratum.key.row) for erratum in copied_rows(paper)}
    return {key: value for key, value in paper.numbers.items() if (key.table, key.row) not in copied}


def bold_marks(paper: Paper, examples: Mapping[str, Mapping[str, int]]) -> Iterator[Erratum]:
    """Yield bold numbers that are no better, or one test example better, than another of their contest.

    A contest is what the paper marks one winner in: rows of equal section and bits but the full-precision one.
    """
    quantized = (cell for cell in paper.cells if cell.run.recipe != FULL_PRECISION)
    contests = _grouped(quantized, lambda c: (c.key.table, c.key.section, c.key.bits, c.key.column, c.key.metric))
    for contest in contests.values():
        rivals = [cell for cell in contest if cell.key not in paper.bold]
        for cell in contest:
            if cell.key in paper.bold and rivals:
                yield from _bold_mark(cell, max(rivals, key=paper.rank), paper, examples)


def contradictions(comparisons: Iterable[Comparison], paper: Paper) -> Iterator[Erratum]:
    """Yield numbers of tables that contradict what the paper says of every cell."""
    for comparison in comparisons:
        room, one, other = comparison.published_room, comparison.one, comparison.other
        if comparison.claim.strict and room is not None and room < 0 and one.key in paper.numbers:
            claim = comparison.claim
            text = f"{comparison.published:+.2f} against {other.key.method}, but {claim.where}: {claim.text}"
            yield paper.erratum(WORDS, one, text)


def two_numbers(paper: Paper) -> Iterator[Erratum]:
    """Yield numbers of runs that an earlier table prints with another number."""
    for cells in _grouped(paper.cells, _identity).values():
        first = cells[0]
        for cell in cells[1:]:
            if paper.value(cell) != paper.value(first):
                text = f"Table {first.key.table} prints {paper.value(first):.2f} for the same run."
                yield paper.erratum(TWO_NUMBERS, cell, text)


def to_csv(errata: Iterable[Erratum]) -> str:
    """Return one line per erratum, byte-stable."""
    lines = [{"kind": e.kind, "value": str(e.value), "text": e.text} | e.key._asdict() for e in errata]
    return write(lines, tuple(columns(Erratum)))


def _bold_mark(cell: Cell, rival: Cell, paper: Paper, examples: Mapping[str, Mapping[str, int]]) -> Iterator[Erratum]:
    """Yield what is wrong with a bold number, given the best of those that are not bold."""
    ahead = round(paper.rank(cell) - paper.rank(rival), DECIMALS)
    against = f"{rival.key.method} (row {rival.key.row}) has {paper.value(rival):.2f}"
    if ahead < 0:
        yield paper.erratum(NOT_BEST, cell, f"{against}, which is better and not bold.")
    elif ahead == 0:
        yield paper.erratum(TIE, cell, f"{against} as well and is not bold.")
    elif round(ahead / 100 * (count := examples.get(cell.run.task, {}).get(cell.metric, 0))) == 1:
        yield paper.erratum(ONE_EXAMPLE, cell, f"{against}: one of {count} test examples less.")


def _copies(row: Sequence[Cell], other: Sequence[Cell], paper: Paper) -> bool:
    """Whether all numbers of a row stand in another one, whose runs are others."""
    by_place = {(cell.key.column, cell.key.metric): cell for cell in other}
    pairs = [(cell, by_place.get((cell.key.column, cell.key.metric))) for cell in row]
    return len(row) >= COPIED and all(
        twin is not None and paper.value(cell) == paper.value(twin) and _identity(cell) != _identity(twin)
        for cell, twin in pairs
    )


def _identity(cell: Cell) -> tuple[object, ...]:
    """Return what a cell's number is of: cells that share it show the same runs."""
    return cell.run, cell.metric


def _grouped(cells: Iterable[Cell], key: Callable[[Cell], Hashable]) -> dict[Hashable, list[Cell]]:
    groups: dict[Hashable, list[Cell]] = defaultdict(list)
    for cell in cells:
        groups[key(cell)].append(cell)
    return groups
