"""SQuAD 1.1 from the Hugging Face data set's parquet."""

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
        InputError: missing, damaged or empty files, missing columns; a question without answer, an answer that is not
            where it should be, an id that occurs twice.
    """
    place, records = text_files.table(root / "plain_text", split, COLUMNS)
    rows = text_files.converted(place, records, _row, "a question of SQuAD 1.1")
    seen: set[str] = set()
    for row in rows:
        if row["id"] in seen:
            raise InputError(f"{place}: the id {row['id']} occurs twice; fetch the data again")
        seen.add(row["id"])
    return rows


def _row(record: dict[str, Any]) -> dict[str, Any]:
    """Return the columns of a question whose answers are in its context."""
    text_files.texts(record, ("id", "context", "question"))
    answers, starts = record["answers"]["text"], record["answers"]["answer_start"]
    if not answers or not all(answers):
        raise ValueError(f"{record['id']} has no answer")
    for answer, start in zip(answers, starts, strict=True):
        if start < 0 or not record["context"].startswith(answer, start):
            raise ValueError(f"an answer of {record['id']} is not at its answer_start")
    return {column: record[column] for column in COLUMNS}
