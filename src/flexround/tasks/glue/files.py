"""The eight GLUE tasks from the parquet files of the Hugging Face data set ``glue``, with its columns and label ids."""

import math
from pathlib import Path
from typing import Any

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


def read(root: Path, name: str, split: str) -> list[dict[str, Any]]:
    """Read one split of a task from ``root/NAME``.

    Args:
        root: directory of all tasks.
        name: as in ``SENTENCES``.
        split: as in ``SPLITS``.

    Returns:
        Rows with the texts ``SENTENCES[name]``, ``label`` and ``idx``. ``label`` is an int from 0, for STS-B a float
        from 0 to 5.

    Raises:
        InputError: missing, damaged or empty files, missing columns, other labels than the task's.
    """
    what, texts = f"the {split} split of {name}", SENTENCES[name]
    place, rows = text_files.read(what, [root / name], [split], (*texts, "label"), texts)
    return [checked(row, index, name, f"{place}: example {index}") for index, row in enumerate(rows)]


def checked(row: dict[str, Any], index: int, name: str, where: str) -> dict[str, Any]:
    """Return the task's columns of a row, with its label as a number, and its ``idx``; ``where`` is for the message.

    Raises:
        InputError: another label than the task's.
    """
    texts = {column: row[column] for column in SENTENCES[name]}
    top = 5 if name == "stsb" else LABELS[name] - 1
    label = _number(row["label"])
    if not 0 <= label <= top or (name != "stsb" and label % 1):
        hint = " (-1 stands for a hidden label: this is a test split)" if label == -1 else ""
        raise InputError(f"{where}: label {row['label']!r}{hint}; the labels of {name} are 0 to {top}")
    return texts | {"label": label if name == "stsb" else int(label), "idx": row.get("idx", index)}


def _number(label: Any) -> float:
    """Return a label as a number, NaN where it is none."""
    try:
        return float(label)
    except (TypeError, ValueError, OverflowError):
        return math.nan
