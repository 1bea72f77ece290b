"""The seven multiple-choice data sets as files that anybody may copy have them: posed already, JSON lines or plain text.

Six are those of mosaicml/llm-foundry; HellaSwag is that of klosax/hellaswag_text_data, six lines a question. Their rows
become those of the Hugging Face hub again, of which lm-eval makes its prompts. Two things don't come back: HellaSwag's
contexts keep the small letter at the beginning of their last sentence, and ARC has only questions with four choices.
"""

import bz2
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from flexround.errors import InputError
from flexround.tasks.commonsense.choices import Row
from flexround.tasks.commonsense.files import checked
from flexround.tasks.text import files as text_files

LINES = 6  # of a question of HellaSwag: context, number of the right ending, four endings
FILES = {  # in the sources directory
    "boolq": "questions/reading_comprehension/boolq.jsonl",
    "piqa": "questions/commonsense_reasoning/piqa.jsonl",
    "hellaswag": "hellaswag/hellaswag_val_full.txt.bz2",
    "winogrande": "questions/language_understanding/winogrande.jsonl",
    "arc_easy": "questions/world_knowledge/arc_easy.jsonl",
    "arc_challenge": "questions/world_knowledge/arc_challenge.jsonl",
    "openbookqa": "questions/commonsense_reasoning/openbook_qa.jsonl",
}


def read(root: Path, name: str) -> list[Row]:
    """Read the questions of a data set, ``name`` as in ``KINDS``, with the fields ``KINDS[name].fields``.

    Raises:
        InputError: a missing, damaged or empty file, or a line that is no question.
    """
    path = root / FILES[name]
    rows = [checked(_fields(name, found, where), name, where) for where, found in _records(path)]
    if not rows:
        raise InputError(f"{path}: no questions; fetch it again")
    return rows


def _records(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield what a file has of each question, and its place for messages: lines of JSON, or six lines of text."""
    if path.suffix == ".jsonl":
        for number, line in enumerate(text_files.decoded(path).rstrip("\n").split("\n"), start=1):
            if line:
                yield f"{path}, line {number}", line
        return
    try:
        lines = bz2.decompress(path.read_bytes()).decode().rstrip("\n").split("\n")
    except FileNotFoundError as error:
        raise InputError(f"{path} is missing; {text_files.WHERE}") from error
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: damaged or not whole ({error}); fetch it again") from error
    for start in range(0, len(lines), LINES):
        yield f"{path}, line {start + 1}", lines[start : start + LINES]


def _fields(name: str, found: Any, where: str) -> Row:
    """Return the hub's fields of a question."""
    try:
        return UNPOSED[name](json.loads(found) if isinstance(found, str) else found)
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise InputError(f"{where}: not a question of {name} ({error!r}); fetch the file again") from error


def _boolq(row: Row) -> Row:
    passage, question = row["query"].removeprefix("Passage: ").rsplit("\nQuestion: ", 1)
    answer = {"no": False, "yes": True}[row["choices"][row["gold"]]]
    return {"passage": passage, "question": question.removesuffix("?"), "answer": answer}


def _piqa(row: Row) -> Row:
    first, second = row["choices"]
    goal = row["query"].removeprefix("Question: ").removesuffix("\n")
    return {"goal": goal, "sol1": first, "sol2": second, "label": row["gold"]}


def _hellaswag(lines: list[str]) -> Row:
    context, label, *endings = lines
    if len(endings) != LINES - 2:
        raise ValueError(f"{len(endings)} endings")
    activity, text = context.split(": ", 1)
    return {"activity_label": activity, "ctx_a": text, "ctx_b": "", "endings": endings, "label": label}


def _winogrande(row: Row) -> Row:
    first, second = row["context_options"]  # whole, in the place of the words that the blank stands for
    sentence = f"_ {row['continuation']}"
    return {"sentence": sentence, "option1": first, "option2": second, "answer": str(row["gold"] + 1)}


def _arc(row: Row) -> Row:
    return {"question": row["query"].removeprefix("Question: "), **_lettered(row)}


def _openbookqa(row: Row) -> Row:
    return {"question_stem": row["query"], **_lettered(row)}


def _lettered(row: Row) -> Row:
    labels = [str(number) for number, _ in enumerate(row["choices"])]
    return {"choices": {"text": row["choices"], "label": labels}, "answerKey": str(row["gold"])}


UNPOSED: dict[str, Callable[[Any], Row]] = {
    "boolq": _boolq,
    "piqa": _piqa,
    "hellaswag": _hellaswag,
    "winogrande": _winogrande,
    "arc_easy": _arc,
    "arc_challenge": _arc,
    "openbookqa": _openbookqa,
}
