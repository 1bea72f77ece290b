"""WebNLG 2017 from its JSON files: sets of triples, and the sentences that put them into words.

The layout is the challenge's, which microsoft/LoRA uses: ``{"entries": [{"1": entry}, {"2": entry}, ...]}``.
"""

import json
from pathlib import Path
from typing import Any

Rows = list[dict[str, Any]]
SEEN = (  # categories of the training set; microsoft/LoRA, examples/NLG/src/format_converting_webnlg.py
    *("Airport", "Astronaut", "Building", "City", "ComicsCharacter"),
    *("Food", "Monument", "SportsTeam", "University", "WrittenWork"),
)


def read(root: Path, split: str) -> Rows:
    """Read the entries of one split, ``train`` or ``test``, from ``root/SPLIT.json``.

    Returns:
        Rows with ``category``, ``seen`` (whether it is one of the training set's), ``context``, which is
        ``"subject : property : object"`` of all triples joined by ``" | "``, and ``references``, the sentences that are
        marked good and not blank. Entries of ``train`` without one are left out; the release has a few.
    """
    document = json.loads((root / f"{split}.json").read_text(encoding="utf-8"))
    rows = [_row(entry[str(number)]) for number, entry in enumerate(document["entries"], 1)]
    return [row for row in rows if row["references"] or split == "test"]


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


def _row(entry: Any) -> dict[str, Any]:
    sentences = [text["lex"] for text in entry["lexicalisations"] if text["comment"] == "good"]
    triples = [[triple[part] for part in ("subject", "property", "object")] for triple in entry["modifiedtripleset"]]
    return {
        "category": entry["category"],
        "seen": entry["category"] in SEEN,
        "context": " | ".join(" : ".join(triple) for triple in triples),
        "references": [sentence for sentence in sentences if sentence.strip()],
    }
