"""The eight GLUE tasks from files: the Hugging Face data set's parquet, GLUE's own TSV, or the original corpora.

Columns, label ids and split names are those of the Hugging Face data set ``glue``.
"""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from flexround.errors import InputError
from flexround.tasks.text import files as text_files

log = logging.getLogger(__name__)

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
COLUMNS = {name: (*texts, "label") for name, texts in SENTENCES.items()}
LABELS = dict.fromkeys(SENTENCES, 2) | {"mnli": 3, "stsb": 1}  # 1: a similarity from 0 to 5
SPLITS: dict[str, tuple[str, ...]] = dict.fromkeys(SENTENCES, ("train", "validation"))
SPLITS["mnli"] = ("train", "validation_matched", "validation_mismatched")

_ENTAILMENT = {"entailment": 0, "not_entailment": 1}
_LABEL_TEXTS = {"mnli": {"entailment": 0, "neutral": 1, "contradiction": 2}, "qnli": _ENTAILMENT, "rte": _ENTAILMENT}
_DIRECTORIES = {"cola": "CoLA", "sst2": "SST-2", "stsb": "STS-B"}  # GLUE's names; the others are in capitals


class _Layout(NamedTuple):
    """Files of tab-separated text.

    Attributes:
        files: split -> its files, all of them, in order.
        columns: the task's columns that the file calls otherwise; the positions of all where the file has no header.
    """

    files: Mapping[str, tuple[str, ...]]
    columns: Mapping[str, str | int] = {}


_GLUE = {"train": ("train.tsv",), "validation": ("dev.tsv",)}
_MNLI = {"train": ("train.tsv",)} | {f"validation_{kind}": (f"dev_{kind}.tsv",) for kind in ("matched", "mismatched")}
_COLA = {"label": 1, "sentence": 3}
_MRPC = {"label": "Quality", "sentence1": "#1 String", "sentence2": "#2 String"}
_MSR = {"train": ("msr_paraphrase_train.txt",), "validation": ("msr_paraphrase_test.txt",)}
_ORIGINAL_COLA = {"train": ("in_domain_train.tsv",), "validation": ("in_domain_dev.tsv", "out_of_domain_dev.tsv")}
_ORIGINAL_STSB = {"train": ("sts-train.csv",), "validation": ("sts-dev.csv",)}
_LAYOUTS: dict[str, tuple[_Layout, ...]] = {
    "cola": (_Layout(_GLUE, _COLA), _Layout(_ORIGINAL_COLA, _COLA)),
    "sst2": (_Layout(_GLUE),),
    "mrpc": (_Layout(_GLUE, _MRPC), _Layout(_MSR, _MRPC)),
    "stsb": (
        _Layout(_GLUE, {"label": "score"}),
        _Layout(_ORIGINAL_STSB, {"label": 4, "sentence1": 5, "sentence2": 6}),
    ),
    "qqp": (_Layout(_GLUE, {"label": "is_duplicate"}),),
    "mnli": (_Layout(_MNLI, {"premise": "sentence1", "hypothesis": "sentence2", "label": "gold_label"}),),
    "qnli": (_Layout(_GLUE),),
    "rte": (_Layout(_GLUE),),
}


def read(root: Path, name: str, split: str) -> list[dict[str, Any]]:
    """Read one split of a task from ``root/NAME``, or ``root/`` and GLUE's own name of the directory.

    Parquet goes before text. The original MRPC has no validation split: its test split stands for it, with a warning,
    and its training split holds GLUE's validation split.

    Args:
        root: directory of all tasks.
        name: as in ``SENTENCES``.
        split: as in ``SPLITS``.

    Returns:
        Rows with the columns ``COLUMNS[name]`` and ``idx``. ``label`` is an int from 0, for STS-B a float from 0 to 5.

    Raises:
        InputError: missing, damaged or empty files, missing columns, other labels than the task's.
    """
    own, official = root / name, root / _DIRECTORIES.get(name, name.upper())
    directory = official if official.is_dir() and not own.is_dir() else own
    if shards := text_files.find([directory], split):
        place, rows = shards[0].parent / f"{split}*.parquet", text_files.read(shards, COLUMNS[name])
    else:
        layout = _find_text(directory, name, split)
        place = directory / layout.files[split][0]
        rows = [row for file in layout.files[split] for row in _read_text(directory / file, name, layout)]
    if not rows:
        raise InputError(f"{place}: no examples; fetch the data again")
    return [_checked(row, index, name, place) for index, row in enumerate(rows)]


def _find_text(directory: Path, name: str, split: str) -> _Layout:
    """Return the layout of which all files of the split are there."""
    for layout in _LAYOUTS[name]:
        if all((directory / file).is_file() for file in layout.files[split]):
            if layout.files is _MSR and split == "validation":
                log.warning("%s: the original MRPC, not GLUE's: its test split becomes the validation set", directory)
            return layout
    choices = [f"{split}-*.parquet", *(" and ".join(layout.files[split]) for layout in _LAYOUTS[name])]
    raise InputError(
        f"{directory}: the {split} split of {name} is missing. Put {' or '.join(choices)} there; "
        "params/sources.yaml says where to get the data"
    )


def _read_text(path: Path, name: str, layout: _Layout) -> list[dict[str, Any]]:
    """Return the rows of a tab-separated file; quotes are text, as stray ones occur in GLUE's files."""
    # Not splitlines, which also cuts at the line ends that Unicode knows, and those occur in texts.
    text = text_files.decoded(path).removeprefix("\ufeff")
    text = text.removeprefix("\u00ef\u00bb\u00bf")  # a byte order mark that was itself encoded as Latin-1
    lines = [line.removesuffix("\r").split("\t") for line in text.split("\n")]
    columns = {column: layout.columns.get(column, column) for column in COLUMNS[name]}
    header = [column for column in columns.values() if isinstance(column, str)]
    text_files.check_columns(path, header, lines[0])
    places = [lines[0].index(column) if isinstance(column, str) else column for column in columns.values()]
    start, needed = 1 if header else 0, max(places) + 1
    rows = []
    for number, fields in enumerate(lines[start:], start=start + 1):
        if len(fields) >= needed:
            rows.append({column: fields[place] for column, place in zip(columns, places, strict=True)})
        elif fields != [""] and name != "qqp":  # GLUE's QQP has a few broken lines, which Hugging Face leaves out too
            raise InputError(f"{path}, line {number}: {len(fields)} fields, needed {needed}; fetch it again")
    return rows


def _checked(row: dict[str, Any], index: int, name: str, place: Path) -> dict[str, Any]:
    """Return the task's columns of a row, with its label as a number, and its ``idx``."""
    texts = {column: row[column] for column in SENTENCES[name]}
    for column, text in texts.items():
        if not isinstance(text, str):
            raise InputError(f"{place}: example {index}: {column} is {text!r}, no text; fetch the data again")
    if (label := _label(row["label"], name)) is None:
        known = " or ".join([f"0 to {5 if name == 'stsb' else LABELS[name] - 1}", *_LABEL_TEXTS.get(name, {})])
        hint = " (-1 stands for a hidden label: this is a test split)" if str(row["label"]) == "-1" else ""
        raise InputError(f"{place}: example {index}: label {row['label']!r}{hint}; the labels of {name} are {known}")
    return texts | {"label": label, "idx": row.get("idx", index)}


def _label(label: Any, name: str) -> float | None:
    """Return the id of a class given as its name or id, or a similarity; None if the task doesn't have it."""
    if name != "stsb":
        return ({str(number): number for number in range(LABELS[name])} | _LABEL_TEXTS.get(name, {})).get(str(label))
    try:
        value = float(label)
    except (TypeError, ValueError):
        return None
    return value if 0.0 <= value <= 5.0 else None
