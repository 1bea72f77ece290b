"""WikiText-2 from the Hugging Face data set's parquet, and the Penn Treebank from Mikolov's text.

Rows are those of Hugging Face's data sets ``wikitext`` and ``ptb_text_only``, because run_clm tokenizes row by row.
"""

import io
from pathlib import Path

from flexround.errors import InputError
from flexround.tasks.text import files as text_files

CONFIGURATION = "wikitext-2-raw-v1"
PTB = {"train": "ptb.train.txt", "validation": "ptb.valid.txt"}


def read(root: Path, name: str, split: str) -> list[dict[str, str]]:
    """Read one split of ``wikitext2``, whose parquet files lie in ``root/wikitext-2-raw-v1``, or of ``ptb``.

    Returns:
        Rows ``{"text": ...}``, one a line. WikiText's lines keep their line end, but blank ones are empty; those of the
        Penn Treebank have no white space at their ends.

    Raises:
        InputError: missing or damaged files, text that is not UTF-8, no column ``text``, nothing but blank lines.
    """
    if name == "wikitext2":
        what = f"the {split} split of wikitext2"
        place, rows = text_files.read(what, [root / CONFIGURATION], [split], ["text"], ["text"])
        texts = [row["text"] if row["text"].strip() else "" for row in rows]
    else:
        place = root / PTB[split]
        # Not splitlines, which also cuts at the line ends that Unicode knows, and those occur in texts.
        texts = [line.strip() for line in io.StringIO(text_files.decoded(place), newline=None)]
    if not any(texts):
        raise InputError(f"{place}: no text; fetch it again")
    return [{"text": text} for text in texts]
