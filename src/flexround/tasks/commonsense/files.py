"""The seven multiple-choice data sets, from parquet of the Hugging Face hub or as git repositories have them.

The files of git repositories have the questions posed already, as JSON lines or plain text. Six are those of
mosaicml/llm-foundry; HellaSwag is that of klosax/hellaswag_text_data. Their words become lm-eval's, but for two
details: the last sentence of HellaSwag's contexts keeps its small letter, and ARC has four choices only.
"""

import bz2
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flexround.errors import InputError
from flexround.tasks.commonsense import choices
from flexround.tasks.commonsense.choices import KINDS, Row
from flexround.tasks.text import files as text_files

SHOTS = "few-shot examples come from it, without them set shots to [0]"
LINES = 6  # of a question of HellaSwag: context, number of the right ending, four endings
POSED = {  # in the sources directory, and what follows a query there
    "boolq": ("questions/reading_comprehension/boolq.jsonl", "\nAnswer:"),
    "piqa": ("questions/commonsense_reasoning/piqa.jsonl", "Answer:"),
    "hellaswag": ("hellaswag/hellaswag_val_full.txt.bz2", ""),
    "winogrande": ("questions/language_understanding/winogrande.jsonl", ""),
    "arc_easy": ("questions/world_knowledge/arc_easy.jsonl", "\nAnswer:"),
    "arc_challenge": ("questions/world_knowledge/arc_challenge.jsonl", "\nAnswer:"),
    "openbookqa": ("questions/commonsense_reasoning/openbook_qa.jsonl", ""),
}


def read(root: Path, name: str, train: bool) -> list[Row]:
    """Read the examples of a data set that are evaluated, or those that few-shot examples are drawn from.

    They come from ``root/NAME``, ``name`` as in ``KINDS``, or a folder in it, which the hub names after the data set's
    configuration. ARC and OpenBookQA are evaluated on their test split, the others, whose test labels are secret, on
    their validation split.

    Returns:
        Rows with the fields ``KINDS[name].fields``, which ``KINDS[name].pose`` takes.

    Raises:
        InputError: missing, damaged or empty files, missing fields, labels that are not there.
    """
    split, hint = ("train", SHOTS) if train else (KINDS[name].split, text_files.WHERE)
    folders = [root / name, *sorted(path for path in (root / name).glob("*") if path.is_dir())]
    what, names = f"the {split} split of {name}", (split, f"{name}_{split}")
    place, rows = text_files.read(what, folders, names, KINDS[name].fields, hint=hint)
    return [_checked(row, name, f"{place}, example {index}") for index, row in enumerate(rows, start=1)]


def _checked(row: Row, name: str, where: str) -> Row:
    """Return the fields of a row that can be asked; ``where`` is for messages."""
    kind = KINDS[name]
    if lacking := [field for field in kind.fields if row[field] is None]:
        raise InputError(f"{where}: no {', '.join(lacking)}; {name} has {', '.join(kind.fields)}")
    content = {field: row[field] for field in kind.fields}
    try:
        choices.check(kind.pose(content))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise InputError(f"{where}: not a question of {name} ({error}): {content}; mend or remove it") from error
    return content


def read_posed(root: Path, name: str) -> list[Row]:
    """Read the questions that a git repository has of a data set, in the form that ``KINDS[name].pose`` returns.

    Raises:
        InputError: a missing, damaged or empty file, or a line that is no question.
    """
    path = root / POSED[name][0]
    rows: list[Row] = []
    for number, found in _records(path):
        try:
            row = _posed(found, POSED[name][1])
            choices.check(row)
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
            where = f"{path}, line {number}: not a question of {name}"
            raise InputError(f"{where} ({error!r}); fetch the file again") from error
        rows.append(row)
    if not rows:
        raise InputError(f"{path}: no questions; fetch it again")
    return rows


def _records(path: Path) -> Iterator[tuple[int, str | list[str]]]:
    """Yield each question's first line number, and its line of JSON or its six lines of text."""
    if path.suffix == ".jsonl":
        yield from ((n, line) for n, line in enumerate(text_files.decoded(path).split("\n"), start=1) if line)
        return
    if not path.is_file():
        raise InputError(f"{path} is missing; {text_files.WHERE}")
    try:
        lines = bz2.decompress(path.read_bytes()).decode().rstrip("\n").split("\n")
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: damaged or not whole ({error}); fetch it again") from error
    yield from ((start + 1, lines[start : start + LINES]) for start in range(0, len(lines), LINES))


def _posed(found: str | list[str], end: str) -> Row:
    """Return a question; ``end`` follows its query."""
    if not isinstance(found, str):
        context, gold, *endings = (choices.tidy(line) for line in found)
        if len(endings) != LINES - 2:
            raise ValueError(f"{len(endings)} endings")
        return {"query": context, "choices": endings, "gold": int(gold)}
    row: Any = json.loads(found)
    if "continuation" in row:
        return {"choices": row["context_options"], "continuation": row["continuation"], "gold": row["gold"]}
    return {"query": row["query"].removeprefix("Passage: ") + end, "choices": row["choices"], "gold": row["gold"]}
