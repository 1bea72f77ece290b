"""WikiText-2 and the Penn Treebank from files: the Hugging Face data set's parquet, or the corpora's own text.

Rows are those of Hugging Face's data sets ``wikitext`` and ``ptb_text_only``, because run_clm tokenizes row by row.
"""

import io
import logging
from pathlib import Path

from flexround.errors import InputError
from flexround.tasks.text import files as text_files

log = logging.getLogger(__name__)

FILES = {"wikitext2": ("wiki.{}.raw", "wiki.{}.tokens"), "ptb": ("ptb.{}.txt",)}  # the corpora's own, best first
SPLITS = {"train": "train", "validation": "valid", "test": "test"}  # ours -> the one in their names
CONFIGURATION = "wikitext-2-raw-v1"


def read(root: Path, name: str, split: str) -> list[dict[str, str]]:
    """Read one split.

    WikiText-2 comes from the parquet files of ``root/wikitext-2-raw-v1`` or ``root``, or from ``wiki.SPLIT.raw``, or,
    with a warning, from ``wiki.SPLIT.tokens``, which has ``<unk>`` for rare words. The Penn Treebank comes from
    Mikolov's ``ptb.SPLIT.txt``.

    Args:
        root: directory of the corpus.
        name: as in ``FILES``.
        split: as in ``SPLITS``.

    Returns:
        Rows ``{"text": ...}``, one a line. WikiText's lines keep their line end, but blank ones are empty; those of the
        Penn Treebank have no white space at their ends.

    Raises:
        InputError: missing or damaged files, text that is not UTF-8, no column ``text``, nothing but blank lines.
    """
    place, lines = _read(Path(root), name, split)
    texts = [line if name == "wikitext2" and line.strip() else line.strip() for line in lines]
    if not any(texts):
        raise InputError(f"{place}: no text; fetch it again")
    return [{"text": text} for text in texts]


def _read(root: Path, name: str, split: str) -> tuple[Path, list[str]]:
    """Return where a split was found, and its lines."""
    if name == "wikitext2" and (shards := text_files.find((root / CONFIGURATION, root), split)):
        texts = [row["text"] for row in text_files.read(shards, ("text",))]
        if (wrong := next((i for i, text in enumerate(texts) if not isinstance(text, str)), None)) is not None:
            raise InputError(f"{shards[0]}: row {wrong}: {texts[wrong]!r} is no text; fetch the data again")
        return shards[0], texts
    names = [file.format(SPLITS[split]) for file in FILES[name]]
    for path in (root / file for file in names):
        if path.is_file():
            if path.suffix == ".tokens":
                log.warning("%s: not the raw text: rare words are <unk>, which changes perplexities", path)
            # Not splitlines, which also cuts at the line ends that Unicode knows, and those occur in texts.
            return path, list(io.StringIO(text_files.decoded(path), newline=None))
    choices = [*([f"{CONFIGURATION}/{split}-*.parquet"] if name == "wikitext2" else []), *names]
    raise InputError(
        f"{root}: the {split} split of {name} is missing. Put {' or '.join(choices)} there; "
        "params/sources.yaml says where to get the data"
    )
