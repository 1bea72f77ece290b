"""The eight GLUE tasks from parquet of the Hugging Face hub, four of them also from the text files of their authors.

Columns and label ids are those of the hub's data set ``glue``.
"""

import itertools
from pathlib import Path
from typing import Any, NamedTuple

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
    header: int  # lines of a file before its first example


LAYOUTS = {
    "cola": Layout(("in_domain_train.tsv",), ("in_domain_dev.tsv", "out_of_domain_dev.tsv"), 1, (3,), (4,), 0),
    # A copy that has a tenth of the training phrases in dev.tsv, and GLUE's validation split in test.tsv.
    "sst2": Layout(("train.tsv", "dev.tsv"), ("test.tsv",), 1, (0,), (2,), 1),
    "mrpc": Layout(("msr_paraphrase_train.txt",), ("msr_paraphrase_test.txt",), 0, (3, 4), (5,), 1),
    # Some lines name two sources more.
    "stsb": Layout(("sts-train.csv",), ("sts-dev.csv",), 4, (5, 6), (7, 9), 0),
}


def read(root: Path, name: str, split: str) -> list[dict[str, Any]]:
    """Read one split of ``SPLITS`` of a task from ``root/NAME``.

    Returns:
        Rows with the texts ``SENTENCES[name]``, ``label`` and ``idx``. ``label`` is an int from 0, for STS-B a float
        from 0 to 5.

    Raises:
        InputError: missing, damaged or empty files, missing columns, other labels than the task's.
    """
    path, records = text_files.table(root / name, split, (*SENTENCES[name], "label", "idx"))
    return text_files.converted(path, records, lambda record: _row(record, name), f"an example of {name}")


def read_released(root: Path, name: str, split: str) -> list[dict[str, Any]]:
    """Read one split of a task of ``LAYOUTS`` from ``root/NAME``; the rows are those of ``read``.

    Raises:
        InputError: missing, damaged or empty files, a line with another number of columns or another label.
    """
    layout, numbers = LAYOUTS[name], itertools.count()

    def row(line: str) -> dict[str, Any]:
        fields = line.rstrip("\r\n").split("\t")  # not pandas, for which an absent field is an empty one
        if len(fields) not in layout.widths:
            raise ValueError(f"{len(fields)} columns, expected {' or '.join(map(str, layout.widths))}")
        texts = zip(SENTENCES[name], (fields[column] for column in layout.texts), strict=True)
        return _row(dict(texts) | {"label": fields[layout.label], "idx": next(numbers)}, name)

    rows = []
    for file in layout.train if split == "train" else layout.validation:
        path = root / name / file
        examples = itertools.islice(text_files.lines(path), layout.header, None)
        rows += text_files.converted(path, examples, row, f"an example of {name}")
    return rows


def _row(record: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the task's columns of a record, with its label as a number."""
    top = 5 if name == "stsb" else LABELS[name] - 1
    label = float(record["label"])
    if not 0 <= label <= top or (name != "stsb" and label % 1):
        hint = " (-1 stands for a hidden label: this is a test split)" if label == -1 else ""
        raise ValueError(f"label {record['label']!r}{hint}; the labels of {name} are 0 to {top}")
    texts = text_files.texts(record, SENTENCES[name])
    return texts | {"label": label if name == "stsb" else int(label), "idx": record["idx"]}
