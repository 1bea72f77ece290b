"""WikiText-2 from the Hugging Face data set's parquet, the Penn Treebank from Mikolov's text, and any text file.

Rows are those of Hugging Face's data sets ``wikitext`` and ``ptb_text_only``, because run_clm tokenizes row by row.
"""

import io
from pathlib import Path

from flexround.errors import InputError
from flexround.tasks.text import files as text_files

CONFIGURATION = "wikitext-2-raw-v1"
VALIDATED = 10  # lines of a text of which one validates
PTB = {"train": "ptb.train.txt", "validation": "ptb.valid.txt"}


def read(root: Path, name: str, split: str) -> list[dict[str, str]]:
    """Read one split of ``wikitext2``, whose parquet files lie in ``root/wikitext-2-raw-v1``, of ``ptb``, or of a text.

    The last tenth of the lines of a text file, which is ``root`` itself, is its validation split.

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
        place = root if name == "text" else root / PTB[split]
        # Not splitlines, which also cuts at the line ends that Unicode knows, and those occur in texts.
        texts = [line.strip() for line in io.StringIO(text_files.decoded(place), newline=None)]
    if name == "text":
        if len(texts) < VALIDATED:
            raise InputError(f"{place}: {len(texts)} lines; give {VALIDATED} or more: the last tenth of them validates")
        kept = len(texts) - len(texts) // VALIDATED
        texts = texts[:kept] if split == "train" else texts[kept:]
    if not any(texts):
        raise InputError(f"{place}: no text; fetch it again")
    return [{"text": text} for text in texts]
