"""Four GLUE tasks from tab-separated files, in the layouts in which their authors released them."""

import csv
import io
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from flexround.errors import InputError
from flexround.tasks.glue.files import SENTENCES, checked
from flexround.tasks.text import files as text_files


class Layout(NamedTuple):
    """The files of each split of a task, and the columns of a line, from 0."""

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
    """Read one split of a task of ``LAYOUTS`` from ``root/NAME``; the rows are those of ``files.read``.

    Raises:
        InputError: missing, damaged or empty files, a line with another number of columns or another label.
    """
    layout = LAYOUTS[name]
    files = layout.train if split == "train" else layout.validation
    lines = itertools.chain.from_iterable(_lines(root / name / file, layout) for file in files)
    rows = []
    for index, (where, fields) in enumerate(lines):
        texts = dict(zip(SENTENCES[name], (fields[column] for column in layout.texts), strict=True))
        rows.append(checked(texts | {"label": fields[layout.label]}, index, name, where))
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
