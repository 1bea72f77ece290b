"""WikiText-2 and C4 as the Hugging Face hub has them, the Penn Treebank from Mikolov's text, and any text file.

Rows are those of Hugging Face's data sets ``wikitext`` and ``ptb_text_only``, because run_clm tokenizes row by row.
"""

import itertools
import json
from pathlib import Path

import numpy as np

from flexround.machine.seeding import derive
from flexround.tasks.text import files as text_files

Rows = list[dict[str, str]]
CONFIGURATION = "wikitext-2-raw-v1"
VALIDATED = 10  # lines of a text of which one validates
PTB = {"train": "ptb.train.txt", "validation": "ptb.valid.txt"}
SHARDS = 1024  # of C4
RELEASED = 0.01  # of the first shard of C4, what the authors' code reads


def read(root: Path, name: str, split: str) -> Rows:
    """Read one split of ``wikitext2``, whose parquet files lie in ``root/wikitext-2-raw-v1``, of ``ptb``, or of a text.

    The last tenth of the lines of a text file, which is ``root`` itself, is its validation split.

    Returns:
        Rows ``{"text": ...}``, one a line. Lines keep their line end, but blank ones of WikiText are empty; those of
        the Penn Treebank have no white space at their ends.
    """
    if name == "wikitext2":
        rows = text_files.table(root / CONFIGURATION, split, ["text"])
        texts = [row["text"] if row["text"].strip() else "" for row in rows]
    elif name == "ptb":
        texts = [line.strip() for line in text_files.lines(root / PTB[split])]
    else:
        texts = [line.replace("\r\n", "\n") for line in text_files.lines(root)]
        kept = len(texts) - len(texts) // VALIDATED
        texts = texts[:kept] if split == "train" else texts[kept:]
    return [{"text": text} for text in texts]


def read_c4(root: Path, rule: str, shards: int, count: int) -> Rows:
    """Read documents of C4 from the shards ``root/en/c4-train.NNNNN-of-01024.json.gz`` of its English variant.

    Args:
        root: the data set.
        rule: ``paper``, random documents in random order; ``release``, the first 1 % of the first shard in its order.
        shards: of ``paper``: the documents come from the first shards, all of which must be there.
        count: of ``paper``: number of documents; all of them where there are fewer.

    Returns:
        Rows ``{"text": ...}``.
    """
    numbers = range(shards if rule == "paper" else 1)
    files = [root / f"en/c4-train.{number:05}-of-{SHARDS:05}.json.gz" for number in numbers]
    total = sum(1 for path in files for _ in text_files.lines(path))
    if rule == "release":
        chosen = np.arange(max(1, round(RELEASED * total)))[:total]
    else:
        chosen = np.random.default_rng(derive("c4 documents")).permutation(total)[:count]
    wanted, documents = set(chosen.tolist()), itertools.chain.from_iterable(map(text_files.lines, files))
    found = {index: json.loads(line)["text"] for index, line in enumerate(documents) if index in wanted}
    return [{"text": found[index]} for index in chosen.tolist()]
