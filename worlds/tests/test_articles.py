"""The mini scale's corpora: the same bytes everywhere, in the layouts of WikiText-2 and the Penn Treebank."""

import hashlib
import json
from itertools import chain

import pytest

from synthetic import articles

SHA256 = {
    "wikitext2": "7442421c9eb4043f708732a839534998b86e8a907c12376e0c623e8c9661c6b1",
    "ptb": "7546550e648f9320832066250354a3e5bc0ed593a8e2d6f3aa8d0cd532b59e1e",
}


@pytest.fixture(scope="module")
def corpora():
    return {name: articles.make(name, 300, 60, 0) for name in ("wikitext2", "ptb")}


def words(rows):
    return list(chain.from_iterable(row["text"].split() for row in rows))


@pytest.mark.parametrize("name", ["wikitext2", "ptb"])
def test_the_bytes_are_the_same_on_every_machine(corpora, name):
    assert hashlib.sha256(json.dumps(corpora[name]).encode()).hexdigest() == SHA256[name]
    assert articles.make(name, 3, 1, 1)["train"] != articles.make(name, 3, 1, 0)["train"]


def test_nothing_is_told_twice(corpora):
    for splits in corpora.values():
        told = [row["text"] for rows in splits.values() for row in rows]
        told = [text for text in told if text and not text.startswith(" = ")]
        assert len(set(told)) == len(told)


def test_articles_tell_what_their_heading_says(corpora):
    texts = [row["text"] for row in corpora["wikitext2"]["train"]]
    headings = [index for index, text in enumerate(texts) if text.startswith(" = ")]
    assert len(headings) == 300
    for index in headings:
        assert texts[index - 1] == texts[index + 1] == ""
        assert texts[index][3:-4] in texts[index + 2]
        assert texts[index + 2].count(" . ") >= 2


def test_sentences_are_those_of_the_penn_treebank(corpora):
    found = words(corpora["ptb"]["train"])
    assert 0.01 < found.count("<unk>") / len(found) < 0.1
    assert found.count("N") > 50
    assert not any(word.isdigit() or word in ".,?" for word in found)
    assert len(set(found)) <= 401


def test_the_corpora_differ(corpora):
    one, other = (set(words(corpora[name]["train"])) for name in corpora)
    assert len(one - other) > 50
    assert len(other - one) > 50
