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
    header: int  # lines of a file before its first example


LAYOUTS = {
    "cola": Layout(("in_domain_train.tsv",), ("in_domain_dev.tsv", "out_of_domain_dev.tsv"), 1, (3,), 0),
    # A copy that has a tenth of the training phrases in dev.tsv, and GLUE's validation split in test.tsv.
    "sst2": Layout(("train.tsv", "dev.tsv"), ("test.tsv",), 1, (0,), 1),
    "mrpc": Layout(("msr_paraphrase_train.txt",), ("msr_paraphrase_test.txt",), 0, (3, 4), 1),
    "stsb": Layout(("sts-train.csv",), ("sts-dev.csv",), 4, (5, 6), 0),
}


def read(root: Path, name: str, split: str) -> list[dict[str, Any]]:
    """Read one split of ``SPLITS`` of a task from ``root/NAME``.

    Returns:
        Rows with the texts ``SENTENCES[name]``, ``label`` and ``idx``. ``label`` is an int from 0, for STS-B a float
        from 0 to 5.
    """
    return text_files.table(root / name, split, (*SENTENCES[name], "label", "idx"))


def read_released(root: Path, name: str, split: str) -> list[dict[str, Any]]:
    """Read one split of a task of ``LAYOUTS`` from ``root/NAME``; the rows are those of ``read``."""
    layout, number = LAYOUTS[name], float if name == "stsb" else int
    rows: list[dict[str, Any]] = []
    for file in layout.train if split == "train" else layout.validation:
        for line in itertools.islice(text_files.lines(root / name / file), layout.header, None):
            fields = line.rstrip("\r\n").split("\t")  # not pandas, for which an absent field is an empty one
            texts = {column: fields[place] for column, place in zip(SENTENCES[name], layout.texts, strict=True)}
            rows.append(texts | {"label": number(fields[layout.label]), "idx": len(rows)})
    return rows
