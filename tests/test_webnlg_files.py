"""WebNLG 2017 in both layouts, in hand-made files; the real splits at the end."""

import json
import shutil
from pathlib import Path

import pytest

from flexround.errors import InputError
from flexround.tasks.webnlg.files import SEEN, read, training_rows, unique_contexts

REAL = Path(__file__).parents[2] / "shared" / "realdata" / "webnlg_2017"
AIRPORT = (
    "Airport",
    [("Aarhus", "leader", "Ann")],
    [("good", "Ann leads Aarhus."), ("toFix", "Ann lead."), ("good", " ")],
)
ARTIST = ("Artist", [("Björk", "born", "1965"), ("Björk", "from", '"Reykjavík"')], [("good", "A"), ("good", "B")])
BARE = ("City", [("Aarhus", "country", "Denmark")], [("bad", "No."), ("good", "")])


def challenge(*entries):
    """Put entries into the challenge's layout."""
    return {
        "entries": [
            {
                str(number): {
                    "category": category,
                    "modifiedtripleset": [
                        dict(zip(("subject", "property", "object"), t, strict=True)) for t in triples
                    ],
                    "lexicalisations": [{"comment": comment, "lex": text} for comment, text in sentences],
                    "size": "1",
                }
            }
            for number, (category, triples, sentences) in enumerate(entries, 1)
        ]
    }


def compact(*entries):
    return [
        {
            "category": category,
            "modifiedtripleset": [" | ".join(triple) for triple in triples],
            "lexicalisations": [{"comment": comment, "text": text} for comment, text in sentences],
        }
        for category, triples, sentences in entries
    ]


def write(tmp_path, split, document):
    (tmp_path / f"{split}.json").write_text(json.dumps(document, ensure_ascii=False), encoding="utf-8")


@pytest.mark.parametrize("layout", [challenge, compact])
def test_both_layouts(tmp_path, layout):
    write(tmp_path, "dev", layout(AIRPORT, BARE, ARTIST))
    assert read(tmp_path, "dev") == [
        {"category": "Airport", "seen": True, "context": "Aarhus : leader : Ann", "references": ["Ann leads Aarhus."]},
        {
            "category": "Artist",
            "seen": False,
            "context": 'Björk : born : 1965 | Björk : from : "Reykjavík"',
            "references": ["A", "B"],
        },
    ]


def test_rows_for_training_and_for_testing(tmp_path):
    again = (*AIRPORT[:2], [("good", "Aarhus is led by Ann.")])
    write(tmp_path, "test", challenge(AIRPORT, ARTIST, again))
    entries = read(tmp_path, "test")
    airport, artist = (entry["context"] for entry in entries[:2])
    assert [tuple(row.values()) for row in training_rows(entries)] == [
        (airport, "Ann leads Aarhus."),
        (artist, "A"),
        (artist, "B"),
        (airport, "Aarhus is led by Ann."),
    ]
    pooled = unique_contexts(entries)
    assert [row["references"] for row in pooled] == [["Ann leads Aarhus.", "Aarhus is led by Ann."], ["A", "B"]]
    assert [(row["context"], row["seen"]) for row in pooled] == [(airport, True), (artist, False)]
    assert entries[0]["references"] == ["Ann leads Aarhus."], "the entries are left as they were"


def without(key):
    """Return two entries, the second without a key."""
    document = compact(AIRPORT, ARTIST)
    del document[1][key]
    return document


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (without("category"), "entry 2 is not in a layout.*category"),
        (without("modifiedtripleset"), "entry 2 is not in a layout.*modifiedtripleset"),
        (without("lexicalisations"), "entry 2 is not in a layout.*lexicalisations"),
        (compact(("City", [("a", "b")], [("good", "A")])), "entry 1 is not in a layout"),
        (compact(("City", [("a", "b", "c")], [("good", None)])), "entry 1 is not in a layout"),
        ({"entries": [challenge(AIRPORT)["entries"][0]] * 2}, "not in a layout.*'2'"),
        ({"rows": []}, "not in a layout.*entries"),
        ([], "no entries with a good reference"),
        (compact(AIRPORT, BARE), r"entry 2 \(Aarhus : country : Denmark\) has no good reference"),
    ],
)
def test_damaged_documents(tmp_path, document, message):
    write(tmp_path, "test", document)
    with pytest.raises(InputError, match=rf"test.json: {message}"):
        read(tmp_path, "test")


def test_missing_and_unreadable_files(tmp_path):
    with pytest.raises(InputError, match=r"dev.json is missing.*params/sources.yaml"):
        read(tmp_path, "dev")
    (tmp_path / "dev.json").write_bytes(json.dumps(compact(ARTIST), ensure_ascii=False).encode("latin-1"))
    with pytest.raises(InputError, match=r"dev.json: not JSON in UTF-8 .*byte 0xf6"):
        read(tmp_path, "dev")
    (tmp_path / "dev.json").write_text('{"entries": [')
    with pytest.raises(InputError, match=r"dev.json: not JSON in UTF-8"):
        read(tmp_path, "dev")


@pytest.mark.skipif(not REAL.is_dir(), reason="no real data here")
@pytest.mark.parametrize(
    ("split", "entries", "contexts", "references"),
    [("train", 6935, 6888, 17979), ("dev", 869, 868, 2253), ("test", 1862, 1862, 4922)],
)
def test_real_splits(split, entries, contexts, references):
    rows = read(REAL, split)
    pooled = unique_contexts(rows)
    assert (len(rows), len(pooled), len(training_rows(rows))) == (entries, contexts, references)
    assert sum(len(row["references"]) for row in pooled) == references
    if split == "test":
        assert sum(row["seen"] for row in rows) == 971
        seen = {}
        assert all(seen.setdefault(row["context"], row["seen"]) == row["seen"] for row in rows)
    else:
        assert {row["category"] for row in rows} == set(SEEN)


@pytest.mark.skipif(not REAL.is_dir(), reason="no real data here")
def test_real_dev_split_in_the_layout_of_the_challenge(tmp_path):
    shutil.copy(REAL / "lora_dev.json", tmp_path / "dev.json")
    rows = read(tmp_path, "dev")  # of 872, one has no good reference
    assert (len(rows), len(unique_contexts(rows)), len(training_rows(rows))) == (871, 870, 2258)
    assert {row["context"] for row in read(REAL, "dev")} < {row["context"] for row in rows}
