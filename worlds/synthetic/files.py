"""Texts of the synthetic world in the formats of the real data sets: parquet, JSON, and text.

The readers of ``flexround.tasks`` give back the rows that the generators make. Each function takes the folder of its
data set.
"""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
from pyarrow import parquet

from flexround.machine.seeding import derive
from flexround.tasks.questions import KINDS
from synthetic import articles, choices, triples
from synthetic import glue as glue_rows
from synthetic import squad as squad_rows

Rows = list[dict[str, Any]]
SHARD = "00000-of-00001"
WIKITEXT = "wikitext-2-raw-v1"
ABOUT = {"timestamp": "2019-04-25T12:57:54Z", "url": "https://example.org/"}  # of every document of C4
# The world's categories under names of WebNLG 2017, by which its reader tells the training set's from others.
CATEGORIES = dict(
    zip(triples.SEEN, ("Astronaut", "City", "Food", "Monument", "Airport", "WrittenWork", "Building"), strict=True)
) | dict(zip(triples.UNSEEN, ("Athlete", "Artist", "CelestialBody", "Politician"), strict=True))


def glue(folder: Path, name: str, train: int, validation: int) -> None:
    """Write so many rows of each split of a task of GLUE."""
    for split, rows in glue_rows.make(name, train, validation, seed=0).items():
        _table(folder / name, split, rows)


def squad(folder: Path, train: int, validation: int) -> None:
    """Write so many questions of SQuAD."""
    for split, rows in squad_rows.make(train, validation, seed=0).items():
        _table(folder / "plain_text", split, rows)


def language(folder: Path, name: str, train: int, validation: int) -> None:
    """Write so many articles of ``wikitext2``, or sentences of ``ptb``."""
    for split, rows in articles.make(name, train, validation, seed=0).items():
        if name == "wikitext2":
            _table(folder / WIKITEXT, split, rows)
        else:  # T. Mikolov's files have a space at either end of a line
            lines = "".join(f" {row['text']} \n" for row in rows)
            _file(folder / f"ptb.{split.removesuffix('ation')}.txt", lines.encode())


def webnlg(folder: Path, train: int, test: int) -> None:
    """Write so many contexts of WebNLG as microsoft/LoRA has them; see ``triples.make``."""
    for split, rows in triples.make(train, test, seed=0).items():
        entries = [{str(number): _entry(row, number)} for number, row in enumerate(rows, 1)]
        _file(folder / f"{split}.json", json.dumps({"entries": entries}, indent=1).encode())


def commonsense(folder: Path, documents: int, validation: int, questions: int, examples: int) -> None:
    """Write what ``Commonsense`` reads: documents of C4, articles of two splits of WikiText-2, seven sets of questions.

    Without ``examples`` the questions have no training split.
    """
    for name, kind in KINDS.items():
        made = choices.make(name, examples, questions, seed=0)
        for split, rows in ((kind.split, made["test"]), ("train", made["train"])):
            if rows:
                _table(folder / "commonsense" / name, split, rows)
    made = articles.make("wikitext2", validation, validation, seed=0)
    for split, rows in (("validation", made["validation"]), ("test", made["train"])):
        _table(folder / "wikitext2" / WIKITEXT, split, rows)
    # The reader draws documents in random order; from lines in this order it draws them as they are made.
    drawn = np.random.default_rng(derive("c4 documents")).permutation(documents)
    texts = articles.documents(documents, seed=0)
    lines = "".join(json.dumps(texts[index] | ABOUT) + "\n" for index in np.argsort(drawn))
    _file(folder / "c4/en/c4-train.00000-of-01024.json.gz", gzip.compress(lines.encode(), mtime=0))


def _table(folder: Path, split: str, rows: Rows) -> None:
    """Write one split as the Hugging Face hub stores it."""
    folder.mkdir(parents=True, exist_ok=True)
    path, table = folder / f"{split}-{SHARD}.parquet", pyarrow.Table.from_pylist(rows)
    parquet.write_table(table, path, compression="zstd", compression_level=19)


def _file(path: Path, content: bytes) -> None:
    """Write a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def _entry(row: dict[str, Any], number: int) -> dict[str, Any]:
    """Return an entry of WebNLG."""
    facts = [fact.split(" : ") for fact in row["context"].split(" | ")]
    sentences = enumerate(row["references"], 1)
    return {
        "category": CATEGORIES[row["category"]],
        "lexicalisations": [
            {"comment": "good", "lang": "", "lex": words, "xml_id": f"Id{n}"} for n, words in sentences
        ],
        "modifiedtripleset": [{"object": thing, "property": what, "subject": who} for who, what, thing in facts],
        "size": str(len(facts)),
        "xml_id": f"Id{number}",
    }
