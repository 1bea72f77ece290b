"""The eight GLUE tasks from parquet of the Hugging Face hub, four of them also from the text files of their authors.

Columns and label ids are those of the hub's data set ``glue``.
"""

import csv
import io
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from flexround.errors import InputError
from flexround.tasks.text import files as text_files

PAIR = ("sentence1", "sentence2")
SENTENCES: dict[str, tuple[str, ...]] = {
    "cola": ("sentence",),
    "sst2": ("sentence",),
    "mrpc": PAIR,
    "stsb": PAIR,
    "qqp": ("question1", "question2"),
    "mnli": ("premise", "hypothesis"),
    "qnli": ("question", "sentence"),
    "rte": PAIR,
}
LABELS = dict.fromkeys(SENTENCES, 2) | {"mnli": 3, "stsb": 1}  # 1: a similarity from 0 to 5
SPLITS: dict[str, tuple[str, ...]] = dict.fromkeys(SENTENCES, ("train", "validation"))
SPLITS["mnli"] = ("train", "validation_matched", "validation_mismatched")


class Layout(NamedTuple):
    """A task as its authors released it: the tab-separated files of each split, and the columns of a line, from 0."""

    train: tuple[str, ...]
    validation: tuple[str, ...]
    label: int
    texts: tuple[int, ...]
    widths: tuple[int, ...]  # how many columns a line may have
    header: bool  # whether the first line of a file holds names of columns


LAYOUTS = {
    "cola": Layout(("in_domain_train.tsv",), ("in_domain_dev.tsv", "out_of_domain_dev.tsv"), 1, (3,), (4,), False),
    # A copy that has a tenth of the training phrases in dev.tsv, and GLUE's validation split in test.tsv.
    "sst2": Layout(("train.tsv", "dev.tsv"), ("test.tsv",), 1, (0,), (2,), True),
    "mrpc": Layout(("msr_paraphrase_train.txt",), ("msr_paraphrase_test.txt",), 0, (3, 4), (5,), True),
    # Some lines name two sources more.
    "stsb": Layout(("sts-train.csv",), ("sts-dev.csv",), 4, (5, 6), (7, 9), False),
}


def read(root: Path, name: str, split: str) -> list[dict[str, Any]]:
    """Read one split of ``SPLITS`` of a task from ``root/NAME``.

    Returns:
        Rows with the texts ``SENTENCES[name]``, ``label`` and ``idx``. ``label`` is an int from 0, for STS-B a float
        from 0 to 5.

    Raises:
        InputError: missing, damaged or empty files, missing columns, other labels than the task's.
    """
    what, texts = f"the {split} split of {name}", SENTENCES[name]
    place, rows = text_files.read(what, [root / name], [split], (*texts, "label"), texts)
    return [_checked(row, index, name, f"{place}: example {index}") for index, row in enumerate(rows)]


def read_released(root: Path, name: str, split: str) -> list[dict[str, Any]]:
    """Read one split of a task of ``LAYOUTS`` from ``root/NAME``; the rows are those of ``read``.

    Raises:
        InputError: missing, damaged or empty files, a line with another number of columns or another label.
    """
    layout = LAYOUTS[name]
    files = layout.train if split == "train" else layout.validation
    rows: list[dict[str, Any]] = []
    for file in files:
        for where, fields in _lines(root / name / file, layout):
            texts = dict(zip(SENTENCES[name], (fields[column] for column in layout.texts), strict=True))
            rows.append(_checked(texts | {"label": fields[layout.label]}, len(rows), name, where))
    return rows


def _lines(path: Path, layout: Layout) -> Iterator[tuple[str, list[str]]]:
    """Yield the place and the fields of each line of a file after its header."""
    text = io.StringIO(text_files.decoded(path), newline="")
    # Not pandas: for its parser an absent field is an empty one. A quote is part of the text.
    lines = csv.reader(text, delimiter="\t", quoting=csv.QUOTE_NONE, strict=True)
    wanted = " or ".join(map(str, layout.widths))
    number = 0
    try:
        for number, fields in enumerate(lines, 1):
            where = f"{path}, line {lines.line_num}"
            if len(fields) not in layout.widths:
                raise InputError(f"{where}: {len(fields)} columns, expected {wanted}; fetch it again")
            if number > layout.header:
                yield where, fields
    except csv.Error as error:
        raise InputError(f"{path}, line {lines.line_num}: not tab-separated text ({error}); fetch it again") from error
    if number <= layout.header:
        raise InputError(f"{path}: no examples; fetch it again")


def _checked(row: dict[str, Any], index: int, name: str, where: str) -> dict[str, Any]:
    """Return the task's columns of a row, with its label as a number, and its ``idx``; ``where`` is for the message."""
    top = 5 if name == "stsb" else LABELS[name] - 1
    try:
        label = float(row["label"])
    except (TypeError, ValueError, OverflowError):
        label = math.nan
    if not 0 <= label <= top or (name != "stsb" and label % 1):
        hint = " (-1 stands for a hidden label: this is a test split)" if label == -1 else ""
        raise InputError(f"{where}: label {row['label']!r}{hint}; the labels of {name} are 0 to {top}")
    texts = {column: row[column] for column in SENTENCES[name]}
    return texts | {"label": label if name == "stsb" else int(label), "idx": row.get("idx", index)}
