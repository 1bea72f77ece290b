"""WebNLG 2017 from its JSON files: sets of triples, and the sentences that put them into words.

Two layouts are read: the challenge's, also used by microsoft/LoRA (``{"entries": [{"1": entry}, ...]}``, triples as
objects, sentences as ``lex``), and the compact one (a list of entries, triples as ``"s | p | o"``, sentences as
``text``).
"""

import json
from pathlib import Path
from typing import Any

from flexround.errors import InputError

Rows = list[dict[str, Any]]
SEEN = (  # categories of the training set; microsoft/LoRA, examples/NLG/src/format_converting_webnlg.py
    *("Airport", "Astronaut", "Building", "City", "ComicsCharacter"),
    *("Food", "Monument", "SportsTeam", "University", "WrittenWork"),
)


def read(root: Path, split: str) -> Rows:
    """Read the entries of one split from ``root/SPLIT.json``.

    Args:
        root: directory of the data set.
        split: ``train``, ``dev`` or ``test``.

    Returns:
        Rows with ``category``, ``seen`` (whether it is one of the training set's), ``context``, which is
        ``"subject : property : object"`` of all triples joined by ``" | "``, and ``references``, the sentences that are
        marked good and not blank. Entries of ``train`` and ``dev`` without one are left out; the release has a few.

    Raises:
        InputError: a missing or damaged file, text that is not UTF-8, another layout, no entries; an entry of ``test``
            without a good reference.
    """
    place = Path(root) / f"{split}.json"
    rows: Rows = []
    for number, entry in enumerate(_entries(place), 1):
        try:
            row = _row(entry)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(
                f"{place}: entry {number} is not in a layout of WebNLG 2017 ({error!r}); fetch the file again"
            ) from error
        if row["references"]:
            rows.append(row)
        elif split == "test":
            raise InputError(f"{place}: entry {number} ({row['context']}) has no good reference; fetch the file again")
    if not rows:
        raise InputError(f"{place}: no entries with a good reference; fetch the file again")
    return rows


def training_rows(entries: Rows) -> Rows:
    """Return one row per sentence: its ``context`` and the sentence as ``reference``."""
    return [{"context": entry["context"], "reference": text} for entry in entries for text in entry["references"]]


def unique_contexts(entries: Rows) -> Rows:
    """Return one row per context, in the order of their first entries, with the references of all its entries."""
    pooled: dict[str, dict[str, Any]] = {}
    for entry in entries:
        row = pooled.setdefault(entry["context"], entry | {"references": []})
        row["references"] += entry["references"]
    return list(pooled.values())


def _entries(place: Path) -> list[Any]:
    """Return the entries of a file in either layout."""
    try:
        document = json.loads(place.read_text(encoding="utf-8"))
        if isinstance(document, list):
            return document
        return [entry[str(number)] for number, entry in enumerate(document["entries"], 1)]
    except FileNotFoundError as error:
        raise InputError(f"{place} is missing; params/sources.yaml says where to get the data") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{place}: not JSON in UTF-8 ({error}); fetch it again") from error
    except (KeyError, TypeError) as error:
        raise InputError(f"{place}: not in a layout of WebNLG 2017 ({error!r}); fetch it again") from error


def _row(entry: Any) -> dict[str, Any]:
    """Return one entry as a row."""
    sentences = [text.get("lex", text.get("text")) for text in entry["lexicalisations"] if text["comment"] == "good"]
    return {
        "category": entry["category"],
        "seen": entry["category"] in SEEN,
        "context": " | ".join(" : ".join(_triple(triple)) for triple in entry["modifiedtripleset"]),
        "references": [sentence for sentence in sentences if sentence.strip()],
    }


def _triple(triple: Any) -> tuple[str, str, str]:
    """Return the subject, property and object of a triple in either layout."""
    if isinstance(triple, str):
        subject, relation, thing = triple.split(" | ")
        return subject, relation, thing
    return triple["subject"], triple["property"], triple["object"]
