"""The seven multiple-choice data sets from files: the hub's parquet, their authors' own, or posed questions.

Posed questions are JSON lines of ``query``, ``choices`` and ``gold``, for WinoGrande ``context_options``,
``continuation`` and ``gold``, the form in which several evaluation suites keep the evaluated split in their repository;
of HellaSwag also text of six lines a question. They are taken apart again, so that every file is asked in the same way.
"""

import bz2
import itertools
import json
import os
import string
from collections.abc import Callable
from pathlib import Path

from flexround.errors import InputError
from flexround.tasks.commonsense.choices import KINDS, Row
from flexround.tasks.text import files as text_files

OWN = {  # the authors' files: of the training examples, and of those that are evaluated
    "boolq": (("train.jsonl",), ("val.jsonl", "dev.jsonl")),  # SuperGLUE's and the original ones
    "piqa": (("train.jsonl",), ("valid.jsonl",)),
    "hellaswag": (("hellaswag_train.jsonl",), ("hellaswag_val.jsonl",)),
    "winogrande": (("train_xl.jsonl",), ("dev.jsonl",)),
    "arc_easy": (("ARC-Easy-Train.jsonl",), ("ARC-Easy-Test.jsonl",)),
    "arc_challenge": (("ARC-Challenge-Train.jsonl",), ("ARC-Challenge-Test.jsonl",)),
    "openbookqa": (("train.jsonl",), ("test.jsonl",)),
}
POSED: dict[str, tuple[str, ...]] = {name: (f"{name}.jsonl",) for name in KINDS}
POSED["openbookqa"] += ("openbook_qa.jsonl",)
POSED["hellaswag"] += ("hellaswag_val_full.txt", "hellaswag_val_full.txt.bz2")


def read(root: Path, name: str, train: bool) -> list[Row]:
    """Read the examples of a data set that are evaluated, or those that few-shot examples are drawn from.

    They come from ``root/NAME``, from parquet first, or where posed from ``root``. ARC and OpenBookQA are evaluated on
    their test split, the others, whose test labels are secret, on their validation split.

    Args:
        root: directory of all seven.
        name: as in ``KINDS``.
        train: the training split.

    Returns:
        Rows with the fields ``KINDS[name].fields``, which ``KINDS[name].pose`` takes.

    Raises:
        InputError: missing, damaged or empty files, missing fields, labels that are not there.
    """
    place, rows = _read(Path(root), name, train)
    if not rows:
        raise InputError(f"{place}: no examples; fetch the data again")
    return [_checked(row, name, f"{place}, example {index}") for index, row in enumerate(rows, start=1)]


def _checked(row: Row, name: str, where: str) -> Row:
    """Return the fields of a row that can be asked; ``where`` is for messages."""
    kind = KINDS[name]
    if lacking := [field for field in kind.fields if row.get(field) is None]:
        raise InputError(f"{where}: no {', '.join(lacking)}; {name} has {', '.join(kind.fields)}")
    content = {field: row[field] for field in kind.fields}
    try:
        posed = kind.pose(content)
        texts = [*posed["choices"], posed.get("continuation", "-")]
        if not all(isinstance(text, str) and text.strip() for text in texts):
            raise ValueError(f"a choice is no text or empty: {texts}")
        if not 0 <= posed["gold"] < len(posed["choices"]):
            raise ValueError(f"choice {posed['gold']} of {len(posed['choices'])}")
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise InputError(f"{where}: not a question of {name} ({error}): {content}; mend or remove it") from error
    return content


def _read(root: Path, name: str, train: bool) -> tuple[Path, list[Row]]:
    """Return where the examples were found, and their rows."""
    split = "train" if train else KINDS[name].split
    folders = [root / name, *sorted(path for path in (root / name).glob("*") if path.is_dir())]  # or of a configuration
    if shards := text_files.find(folders, split, f"{name}_{split}"):
        return shards[0], [_named(row) for row in text_files.read(shards, ())]
    own = [root / name / file for file in OWN[name][0 if train else 1]]
    posed = [] if train else [root / file for file in POSED[name]]
    for path in (*own, *posed):
        if path.is_file():
            return path, [_named(row) for row in (_taken_apart(path, name) if path in posed else _authors(path))]
    places = ", ".join(os.path.relpath(path, root) for path in (*own, *posed))
    needed = "; few-shot examples come from it, without them set shots to [0]" if train else ""
    raise InputError(
        f"{root}: the {split} split of {name} is missing. Put {name}/{split}.parquet or {places} there{needed}"
    )


def _named(row: Row) -> Row:
    """Return a row with the fields that the hub's data sets have."""
    if "answer" not in row and "passage" in row:  # BoolQ in SuperGLUE
        return row | {"answer": row.get("label")}
    question = row.get("question")
    if isinstance(question, dict):  # ARC and OpenBookQA as their authors have them
        stem, choices = question.get("stem"), question.get("choices")
        listed = [choice for choice in choices if isinstance(choice, dict)] if isinstance(choices, list) else []
        columns = {key: [choice.get(key) for choice in listed] for key in ("text", "label")}
        return row | {"question": stem, "question_stem": stem, "choices": columns}
    return row


def _authors(path: Path) -> list[Row]:
    """Read JSON lines, and PIQA's labels from the file beside them."""
    rows = read_lines(path)
    labels = path.with_name(f"{path.stem}-labels.lst")
    if not labels.is_file() or any("answer" in row for row in rows):
        return rows
    lines = text_files.decoded(labels).split()
    if len(lines) != len(rows):
        raise InputError(f"{labels}: {len(lines)} labels for the {len(rows)} examples of {path.name}; fetch both again")
    return [row | {"label": label} for row, label in zip(rows, lines, strict=True)]


def read_lines(path: Path) -> list[Row]:
    """Read a file of JSON objects, one a line.

    Raises:
        InputError: a line is something else, or not UTF-8.
    """
    rows = []
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path}, line {number}: not JSON ({error}); fetch it again") from error
        if not isinstance(row, dict):
            raise InputError(f"{path}, line {number}: {str(row)[:60]!r} is not an example; fetch it again")
        rows.append(row)
    return rows


def _taken_apart(path: Path, name: str) -> list[Row]:
    """Read posed questions."""
    if path.suffix != ".jsonl":
        return _six_lines(path)
    rows = read_lines(path)
    try:
        return [_PARTS[name](row) for row in rows]
    except (KeyError, ValueError, IndexError, AttributeError, TypeError) as error:
        raise InputError(f"{path}: its lines are not the posed questions of {name} ({error!r})") from error


def _six_lines(path: Path) -> list[Row]:
    """Read HellaSwag's contexts, labels and four endings; the contexts are whole, so that nothing is capitalized."""
    data = path.read_bytes()
    try:
        lines = (bz2.decompress(data) if path.suffix == ".bz2" else data).decode().rstrip("\n").split("\n")
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: not a whole text in UTF-8 ({error}); fetch it again") from error
    if len(lines) % 6:
        raise InputError(f"{path}: {len(lines)} lines are not six for each question; fetch it again")
    rows = []
    for start in range(0, len(lines), 6):
        query, label, *endings = lines[start : start + 6]
        activity, _, context = query.partition(": ")
        rows.append({"activity_label": activity, "ctx_a": context, "ctx_b": "", "endings": endings, "label": label})
    return rows


def _boolq(row: Row) -> Row:
    passage, question = row["query"].removeprefix("Passage: ").rsplit("\nQuestion: ", 1)
    return {"passage": passage, "question": question.removesuffix("?"), "answer": row["choices"][row["gold"]] == "yes"}


def _piqa(row: Row) -> Row:
    first, second = row["choices"]
    goal = row["query"].removeprefix("Question: ").removesuffix("\n")
    return {"goal": goal, "sol1": first, "sol2": second, "label": row["gold"]}


def _winogrande(row: Row) -> Row:
    first, second = row["context_options"]
    alike = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False))
    start = first.rfind(" ", 0, len(list(alike))) + 1  # options may begin alike
    sentence = f"{first[:start]}_ {row['continuation']}"
    return {"sentence": sentence, "option1": first[start:], "option2": second[start:], "answer": str(row["gold"] + 1)}


def _exam(row: Row) -> Row:
    stem, labels = row["query"].removeprefix("Question: "), list(string.ascii_uppercase[: len(row["choices"])])
    choices = {"text": row["choices"], "label": labels}
    return {"question": stem, "question_stem": stem, "choices": choices, "answerKey": labels[row["gold"]]}


_PARTS: dict[str, Callable[[Row], Row]] = {
    "boolq": _boolq,
    "piqa": _piqa,
    "winogrande": _winogrande,
    "arc_easy": _exam,
    "arc_challenge": _exam,
    "openbookqa": _exam,
}
