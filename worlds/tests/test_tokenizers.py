"""The tokenizers of the synthetic world: BERT's and GPT-2's kinds, the same in every process."""

import json
import os
import subprocess
import sys

import pytest

from flexround.errors import SettingsError
from synthetic import tokenizers

CORPUS = [
    "The red tower of Arlen was built by Mira Voss.",
    "Mira Voss built the red tower near the old river.",
    "Who built the tower? It wasn't the river keeper.",
    "Arlen lies on the river; its keeper is Tomas Brand, born in Velm.",
]
TEXTS = ["Mira built it.", "the keeper of the river of the tower of Arlen", "river", "", "Zürich 中 x"]


@pytest.fixture(scope="module")
def wordpiece():
    return tokenizers.train(CORPUS, "wordpiece", 120)


@pytest.fixture(scope="module")
def bpe():
    return tokenizers.train(CORPUS, "bpe", 320)


def test_wordpiece_is_bert_s(wordpiece):
    assert [wordpiece.token_to_id(token) for token in tokenizers.SPECIAL] == [0, 1, 2, 3, 4]
    assert wordpiece.get_vocab_size() <= 120
    assert wordpiece.decode(wordpiece.encode("The RED tower").ids) == "the red tower"
    assert wordpiece.encode("中").tokens == ["[CLS]", "[UNK]", "[SEP]"]
    assert any(token.startswith("##") for token in wordpiece.get_vocab())


def test_bpe_is_gpt2_s_and_knows_every_text(bpe):
    assert bpe.token_to_id("<|endoftext|>") == bpe.padding["pad_id"] == 0
    assert 256 < bpe.get_vocab_size() < 320, "merged tokens that the corpus never shows are left out"
    for text in (*TEXTS, "tab\t\x00 \U0001f600"):
        assert bpe.decode(bpe.encode(text).ids) == text
    assert bpe.encode(" tower").tokens == ["Ġtower"]
    assert bpe.encode("a", "b").ids == bpe.encode("a").ids + bpe.encode("b").ids


def test_training_is_the_same_in_every_process(wordpiece, bpe):
    code = (
        "import json, sys; from synthetic import tokenizers\n"
        "for kind, size in (('wordpiece', 120), ('bpe', 320)):\n"
        "    print(tokenizers.train(json.loads(sys.argv[1]), kind, size).to_str())"
    )
    command = [sys.executable, "-c", code, json.dumps(CORPUS)]
    environment = os.environ | {"PYTHONHASHSEED": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert run.stdout == f"{wordpiece.to_str()}\n{bpe.to_str()}\n"


@pytest.mark.parametrize(
    ("kind", "size", "message"),
    [("bpe", 200, "size 200: .* 257"), ("wordpiece", 10, "size 10: ")],
)
def test_impossible_tokenizers_are_refused(kind, size, message):
    with pytest.raises(SettingsError, match=message):
        tokenizers.train(CORPUS, kind, size)


def test_a_begin_stands_before_each_text_and_pair():
    begun = tokenizers.train(CORPUS, "bpe-begin", 320)
    plain = tokenizers.train(CORPUS, "bpe", 320)
    assert begun.encode("").ids == [0]
    assert begun.encode(TEXTS[0]).ids == [0, *plain.encode(TEXTS[0]).ids]
    pair = begun.encode(TEXTS[0], TEXTS[1])
    assert pair.ids == [0, *plain.encode(TEXTS[0]).ids, *plain.encode(TEXTS[1]).ids]
    assert pair.type_ids == [0] * (1 + len(plain.encode(TEXTS[0]).ids)) + [1] * len(plain.encode(TEXTS[1]).ids)
    assert begun.token_to_id("<|endoftext|>") == 0
