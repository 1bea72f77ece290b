"""SQuAD 1.1 from files: the Hugging Face data set's parquet, or SQuAD's own JSON, also zipped."""

import json
import zipfile
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

from flexround.errors import InputError
from flexround.tasks.text import files as text_files

COLUMNS = ("id", "title", "context", "question", "answers")
FILES = {"train": "train-v1.1.json", "validation": "dev-v1.1.json"}  # SQuAD's own


def read(root: Path, split: str) -> list[dict[str, Any]]:
    """Read one split from ``root/plain_text`` or ``root``.

    Args:
        root: directory of the data set.
        split: ``train`` or ``validation``.

    Returns:
        Rows with the columns ``id``, ``title``, ``context``, ``question`` and ``answers``, which holds ``text`` and the
        character offsets ``answer_start``.

    Raises:
        InputError: missing, damaged or empty files, missing columns; questions without answer, answers that are not
            where they should be, ids that occur twice.
    """
    try:
        place, rows = _read(Path(root), split)
        if not rows:
            raise InputError(f"{place}: no questions; fetch it again")
        _check(place, rows)
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{root}: {split} is not in the layout of SQuAD 1.1 ({error!r}); fetch it again") from error
    return rows


def _read(root: Path, split: str) -> tuple[Path, list[dict[str, Any]]]:
    """Return where a split was found, and its rows."""
    if shards := text_files.find((root / "plain_text", root), split):
        return shards[0], [{column: row[column] for column in COLUMNS} for row in text_files.read(shards, COLUMNS)]
    plain, zipped = root / FILES[split], root / f"{FILES[split]}.zip"
    for path in (plain, zipped):
        if path.is_file():
            return path, _flatten(_read_json(path))
    raise InputError(
        f"{root}: the {split} split of SQuAD 1.1 is missing. Put plain_text/{split}-*.parquet or {plain.name} or "
        f"{zipped.name} there; params/sources.yaml says where to get the data"
    )


def _read_json(path: Path) -> Any:
    """Read JSON, or the one file of that name in a zip."""
    try:
        if path.suffix != ".zip":
            return json.loads(path.read_bytes())
        with zipfile.ZipFile(path) as archive:
            return json.loads(archive.read(path.stem))
    except (ValueError, KeyError, OSError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        raise InputError(f"{path}: not readable ({error}); fetch it again") from error


def _flatten(document: Any) -> list[dict[str, Any]]:
    """Return one row per question of SQuAD's articles of paragraphs of questions."""
    return [
        {
            "id": question["id"],
            "title": article["title"],
            "context": paragraph["context"],
            "question": question["question"],
            "answers": {key: [answer[key] for answer in question["answers"]] for key in ("text", "answer_start")},
        }
        for article in document["data"]
        for paragraph in article["paragraphs"]
        for question in paragraph["qas"]
    ]


def _check(place: Path, rows: list[dict[str, Any]]) -> None:
    """Check the ids and answers of all rows."""
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
