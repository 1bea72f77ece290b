"""Errata: what the code finds in the published numbers is what a reader found, and nothing else."""

import dataclasses
from pathlib import Path

import pytest
from table_runs import OF_RUNS, figure7

from flexround.results import cells, paper_numbers
from flexround.results.cells import Scope
from flexround.results.claims import errata, specs, verdicts
from flexround.settings.load import load_params

N18, N50, MOBILE, TORCH = "ResNet-18", "ResNet-50", "MobileNetV2", "pre-trained model from PyTorch"
NOT_BEST = {
    *((1, 4, N18, "top5"), (3, 3, N18, "top5"), (3, 9, N50, "top5")),
    *((8, 4, N50, "top5"), (8, 7, N18, "top5"), (8, 7, N50, "top5")),
    *((9, 3, N18, "top5"), (9, 9, N50, "top5")),
    *((10, 4, TORCH, "top1"), (10, 4, TORCH, "top5")),
    *((11, 10, N50, "top5"), (21, 9, "WinoGrande", "acc")),
}
TIES = {
    *((2, 7, N50, "top5"), (15, 9, "BERT-BASE", "acc"), (15, 24, "GPT-Neo-125M", "acc")),
    *((16, 3, "BERT-BASE", "acc"), (16, 6, "BERT-BASE", "acc")),
}
WORDS = {(2, 7, N18, "top1"), (2, 7, N18, "top5"), (3, 2, N50, "top1"), (3, 3, N50, "top1"), (11, 10, N50, "top5")}
ONE_EXAMPLE = {  # 75.49 and 75.25, 85.05 and 84.80 of 408; 92.26 and 92.24 of 5463; 42.20 and 42.00 of 500
    *((4, 9, "GPT-Neo-125M", "acc"), (4, 9, "GPT-Neo-1.3B", "acc")),
    *((15, 21, "GPT-Neo-125M", "acc"), (15, 21, "GPT-Neo-1.3B", "acc")),
    *((16, 3, "BERT-LARGE", "acc"), (21, 3, "OBQA", "acc")),
}


@pytest.fixture(scope="module")
def paper() -> errata.Paper:
    scope = Scope("paper", load_params("paper").recipes.recipes, 1, Path("nowhere"))
    found = [cell for table in OF_RUNS.values() for cell in cells.collect(table, scope)]
    return errata.printed(found, paper_numbers.load(), paper_numbers.load_bold())


@pytest.fixture(scope="module")
def found(paper: errata.Paper) -> list[errata.Erratum]:
    params, spec = load_params("paper"), specs.load()
    places = {
        table.place: verdicts.Place([c for c in paper.cells if c.key.table == table.number], paper.numbers)
        for table in OF_RUNS.values()
    }
    places["figure 7"] = verdicts.Place(*figure7(params))
    return errata.find(paper, verdicts.compare(spec.claims, places), spec.examples)


def places(found: list[errata.Erratum], kind: str) -> list[tuple[int, int, str, str]]:
    return [(key.table, key.row, key.column, key.metric) for _, key, _, _ in (e for e in found if e.kind == kind)]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (errata.COPY, {(20, 8, "BoolQ", "acc")}),
        (errata.NOT_BEST, NOT_BEST),
        (errata.TIE, TIES),
        (errata.WORDS, WORDS),
        (errata.ONE_EXAMPLE, ONE_EXAMPLE),
        (errata.TWO_NUMBERS, set()),
    ],
)
def test_found_is_what_a_reader_found(found: list[errata.Erratum], kind: str, expected: set[object]) -> None:
    assert sorted(places(found, kind)) == sorted(expected)


def test_texts_name_what_a_number_is_compared_with(found: list[errata.Erratum]) -> None:
    texts = {(e.kind, e.key.table, e.key.row, e.key.column, e.key.metric): e.text for e in found}
    copy = texts[errata.COPY, 20, 8, "BoolQ", "acc"]
    assert "Half-precision in table 7 row 1, table 19 row 7, table 21 row 7" in copy
    assert "B+AdaRound (row 8) has 72.69, which is better" in texts[errata.NOT_BEST, 21, 9, "WinoGrande", "acc"]
    assert "-2.07 against Full-precision" in texts[errata.WORDS, 3, 3, N50, "top1"]
    assert "one of 408 test examples" in texts[errata.ONE_EXAMPLE, 4, 9, "GPT-Neo-125M", "acc"]


def test_marks_of_the_tables_are_found(found: list[errata.Erratum]) -> None:
    marked = [(t.number, e.row, e.column) for t in OF_RUNS.values() for e in t.errata]
    assert marked, "tables 20 and 21"
    for number, row, column in marked:
        keys = [e.key for e in found if (e.key.table, e.key.row) == (number, row)]
        assert any(column in (None, key.column) for key in keys), (number, row, column)


# planted mistakes


def planted(paper: errata.Paper, table: int, row: int, column: str, value: float) -> errata.Paper:
    keys = [k for k in paper.numbers if (k.table, k.row, k.column) == (table, row, column)]
    assert keys
    return paper._replace(numbers={**paper.numbers, **dict.fromkeys(keys, value)})


def test_a_run_with_two_numbers_is_found(paper: errata.Paper) -> None:
    changed = planted(paper, 11, 2, N18, 60.0)
    assert places(list(errata.two_numbers(changed)), errata.TWO_NUMBERS) == [
        (11, 2, N18, "top1"),
        (11, 2, N18, "top5"),
    ]


def test_a_lower_perplexity_is_the_better_one(paper: errata.Paper) -> None:
    changed = planted(paper, 5, 3, "OPT-1.3B", 12.67)  # AdaRound: 12.66
    assert (5, 3, "OPT-1.3B", "perplexity") in places(list(errata.bold_marks(changed, {})), errata.NOT_BEST)
    assert all(key[0] != 5 for key in places(list(errata.bold_marks(paper, {})), errata.NOT_BEST))


def test_equal_rows_of_the_same_runs_are_no_copies(paper: errata.Paper) -> None:
    twice = [dataclasses.replace(c, key=c.key._replace(table=99)) for c in paper.cells if c.key.table == 5]
    numbers = paper.numbers | {c.key: paper.numbers[c.key._replace(table=5)] for c in twice}
    more = paper._replace(cells=[*paper.cells, *twice], numbers=numbers)
    assert places(list(errata.copied_rows(more)), errata.COPY) == [(20, 8, "BoolQ", "acc")]
