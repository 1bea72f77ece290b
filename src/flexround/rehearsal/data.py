"""Stand-ins of data sets: a few rows of the mini scale's texts, and noise as images, in the real files."""

import functools
import gzip
import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
from PIL import Image
from pyarrow import parquet

from flexround.errors import SettingsError, suggest
from flexround.mini import articles, choices, glue, squad, triples
from flexround.rehearsal.scale import CLASSES, IMAGES
from flexround.settings.schema import Source
from flexround.tasks.webnlg.files import SEEN

Rows = list[dict[str, Any]]
SHARD = "00000-of-00001"
TRAIN, VALIDATION = 48, 12  # rows of a split
ARTICLES, DOCUMENTS, SENTENCES = 20, 60, 400
DIFFERENT, MODES, PNG = 41, {1: "L", 2: "CMYK"}, 3  # images; what is odd about some, by their number
UNSEEN = "Athlete"  # a category of WebNLG's test set alone


def write(name: str, source: Source, path: Path) -> None:
    """Write the data set of a row of ``params/sources.yaml``.

    Raises:
        SettingsError: none is known for this name.
    """
    path.mkdir(parents=True)
    if name in FILES:
        FILES[name](path)
    elif name in TABLES:
        for pattern in source.files:
            file = path / pattern.replace("*", SHARD)
            split = file.stem.removesuffix(f"-{SHARD}").removeprefix(f"{name}_")
            file.parent.mkdir(parents=True, exist_ok=True)
            parquet.write_table(pyarrow.Table.from_pylist(TABLES[name](file.parent.name)[split]), file)
    else:
        raise SettingsError(f"no stand-in for the data set {suggest(name, (*FILES, *TABLES))}; add one to {__name__}")


@functools.cache
def _glue(folder: str) -> dict[str, Rows]:
    """Return the splits of one of GLUE's tasks."""
    return glue.make(folder, TRAIN, VALIDATION, seed=0)


@functools.cache
def _squad(_: str) -> dict[str, Rows]:
    """Return SQuAD's splits."""
    return squad.make(TRAIN, VALIDATION, seed=0)


@functools.cache
def _wikitext(_: str) -> dict[str, Rows]:
    """Return WikiText-2's splits."""
    made = articles.make("wikitext2", 2 * ARTICLES, ARTICLES, seed=0)
    half = len(made["train"]) // 2
    return {"train": made["train"][:half], "test": made["train"][half:], "validation": made["validation"]}


@functools.cache
def _questions(name: str) -> dict[str, Rows]:
    """Return the splits of a multiple-choice data set; the one that is evaluated is called either way."""
    made = choices.make(name, VALIDATION, VALIDATION, seed=0)
    return {"train": made["train"], "validation": made["test"], "test": made["test"]}


def _ptb(path: Path) -> None:
    """Write sentences as in T. Mikolov's files: a line each, with a space at either end."""
    made = articles.make("ptb", SENTENCES, SENTENCES // 4, seed=0)
    for split, rows in (("train", made["train"]), ("valid", made["validation"])):
        (path / f"ptb.{split}.txt").write_text("".join(f" {row['text']} \n" for row in rows))


def _c4(path: Path) -> None:
    """Write a shard of C4."""
    (path / "en").mkdir()
    with gzip.open(path / "en/c4-train.00000-of-01024.json.gz", "wt") as file:
        for row in articles.documents(DOCUMENTS, seed=0):
            about = {"timestamp": "2019-04-25T12:57:54Z", "url": "https://example.org/"}
            file.write(json.dumps(row | about) + "\n")


def _webnlg(path: Path) -> None:
    """Write WebNLG 2017 as microsoft/LoRA has it."""
    for split, rows in triples.make(TRAIN, VALIDATION, seed=0).items():
        entries = [{str(number): _entry(row, number)} for number, row in enumerate(rows, 1)]
        (path / f"{split}.json").write_text(json.dumps({"entries": entries}, indent=4))


def _entry(row: dict[str, Any], number: int) -> dict[str, Any]:
    """Return an entry of WebNLG."""
    facts = [fact.split(" : ") for fact in row["context"].split(" | ")]
    sentences = [{"comment": "good", "lang": "", "lex": text, "xml_id": f"Id{n}"} for n, text in _counted(row)]
    return {
        "category": SEEN[0] if row["seen"] else UNSEEN,
        "lexicalisations": sentences,
        "modifiedtripleset": [{"object": thing, "property": what, "subject": who} for who, what, thing in facts],
        "size": str(len(facts)),
        "xml_id": f"Id{number}",
    }


def _counted(row: dict[str, Any]) -> Iterator[tuple[int, str]]:
    """Return the sentences of an entry with their numbers."""
    return enumerate(row["references"], 1)


def _imagenet(path: Path) -> None:
    """Write noise, a folder for each class; most images are the same few again."""
    made = list(_images())
    for split, count in IMAGES.items():
        for number in range(count):
            name = f"n{10000000 + number % CLASSES}"
            file = path / split / name / f"{name}_{number}.JPEG"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(made[number % len(made)])


def _images() -> Iterator[bytes]:
    """Yield image files in two sizes, all called JPEG; as in ILSVRC2012 some are grey, in CMYK, or PNG."""
    rng = np.random.default_rng(0)
    for number in range(DIFFERENT):
        image = Image.fromarray(rng.integers(0, 256, (6, 8, 3), dtype=np.uint8)).convert(MODES.get(number, "RGB"))
        file = io.BytesIO()
        resized = image.resize((64, 48) if number % 2 else (40, 60), Image.Resampling.BICUBIC)
        resized.save(file, "PNG" if number == PNG else "JPEG", quality=90)
        yield file.getvalue()


FILES: dict[str, Callable[[Path], None]] = {"ptb": _ptb, "c4": _c4, "webnlg": _webnlg, "imagenet": _imagenet}
_CHOICES = ("boolq", "piqa", "hellaswag", "winogrande", "arc-easy", "arc-challenge", "openbookqa")
# By the folder that a file lies in, which is a task of GLUE.
TABLES: dict[str, Callable[[str], dict[str, Rows]]] = {"glue": _glue, "squad": _squad, "wikitext2": _wikitext} | {
    name: functools.partial(lambda data, _: _questions(data), name.replace("-", "_")) for name in _CHOICES
}
