"""SQuAD 1.1 from the Hugging Face data set's parquet."""

from collections import Counter
from pathlib import Path
from typing import Any

from flexround.errors import InputError
from flexround.tasks.text import files as text_files

COLUMNS = ("id", "title", "context", "question", "answers")


def read(root: Path, split: str) -> list[dict[str, Any]]:
    """Read one split, ``train`` or ``validation``, from ``root/plain_text``.

    Returns:
        Rows with the columns ``id``, ``title``, ``context``, ``question`` and ``answers``, which holds ``text`` and the
        character offsets ``answer_start``.

    Raises:
        InputError: missing, damaged or empty files, missing columns; questions without answer, answers that are not
            where they should be, ids that occur twice.
    """
    what, texts = f"the {split} split of SQuAD 1.1", ("id", "context", "question")
    place, found = text_files.read(what, [root / "plain_text"], [split], COLUMNS, texts)
    rows = [{column: row[column] for column in COLUMNS} for row in found]
    try:
        _check(place, rows)
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{place}: {split} is not in the layout of SQuAD 1.1 ({error!r}); fetch it again") from error
    return rows


def _check(place: Path, rows: list[dict[str, Any]]) -> None:
    """Check the ids and answers of all rows; ``place`` is for messages."""
    answers = {row["id"]: row["answers"]["text"] for row in rows}
    faults = {
        "an id that occurs twice": [name for name, count in Counter(row["id"] for row in rows).items() if count > 1],
        "no answer, unlike in SQuAD 1.1": [name for name, texts in answers.items() if not texts or not all(texts)],
        "an answer that is not at its answer_start": [row["id"] for row in rows if not _in_place(row)],
    }
    for fault, ids in faults.items():
        if ids:
            raise InputError(f"{place}: {len(ids)} questions have {fault}, the first is {ids[0]}; fetch the data again")


def _in_place(row: dict[str, Any]) -> bool:
    """Say whether the context has every answer at its start."""
    texts, starts = row["answers"]["text"], row["answers"]["answer_start"]
    return len(texts) == len(starts) and all(
        start >= 0 and row["context"].startswith(text, start) for text, start in zip(texts, starts, strict=True)
    )
