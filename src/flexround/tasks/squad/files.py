"""SQuAD 1.1 from the Hugging Face data set's parquet."""

from pathlib import Path
from typing import Any

from flexround.tasks.text import files as text_files

COLUMNS = ("id", "title", "context", "question", "answers")


def read(root: Path, split: str) -> list[dict[str, Any]]:
    """Read one split, ``train`` or ``validation``, from ``root/plain_text``.

    Returns:
        Rows with the columns ``id``, ``title``, ``context``, ``question`` and ``answers``, which holds ``text`` and the
        character offsets ``answer_start``.
    """
    return text_files.table(root / "plain_text", split, COLUMNS)
