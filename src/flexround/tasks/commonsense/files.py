"""The seven multiple-choice data sets from the parquet files of the Hugging Face hub."""

from pathlib import Path

from flexround.errors import InputError
from flexround.tasks.commonsense.choices import KINDS, Row, check
from flexround.tasks.text import files as text_files

SHOTS = "few-shot examples come from it, without them set shots to [0]"


def read(root: Path, name: str, train: bool) -> list[Row]:
    """Read the examples of a data set that are evaluated, or those that few-shot examples are drawn from.

    They come from ``root/NAME`` or a folder in it, which the hub names after the data set's configuration. ARC and
    OpenBookQA are evaluated on their test split, the others, whose test labels are secret, on their validation split.

    Args:
        root: directory of all seven.
        name: as in ``KINDS``.
        train: the training split.

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
        check(kind.pose(content))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise InputError(f"{where}: not a question of {name} ({error}): {content}; mend or remove it") from error
    return content
