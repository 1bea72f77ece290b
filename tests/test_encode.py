"""Token ids of texts and pairs, and tokenizer files."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tokenizers

from flexround.errors import InputError
from flexround.models import tokenizer_files
from flexround.tasks.text import encode
from synthetic import tokenizers as mini

REAL = Path(__file__).parents[2] / "shared" / "realdata" / "tokenizers"
CORPUS = [
    "The red tower of Arlen was built by Mira Voss.",
    "Mira Voss built the red tower near the old river.",
    "Who built the tower? It wasn't the river keeper.",
    "Arlen lies on the river; its keeper is Tomas Brand, born in Velm.",
]
FIRST = ["Mira built it.", "the keeper of the river of the tower of Arlen", "river", "", "Zürich 中 x"]
SECOND = ["Who?", "the red tower", "the old keeper of the red tower near the old river", "Voss", "\u20ac tower"]


@pytest.fixture(scope="module")
def wordpiece():
    return mini.train(CORPUS, "wordpiece", 120)


@pytest.fixture(scope="module")
def bpe():
    return mini.train(CORPUS, "bpe", 320)


def test_pairs_are_joined_padded_and_typed_by_hand(wordpiece):
    number = wordpiece.token_to_id
    words = lambda text: wordpiece.encode(text, add_special_tokens=False).ids  # noqa: E731
    a, b = words("the red tower"), words("the river")
    found = encode.encode(wordpiece, ["The red tower"], ["the RIVER"], 16)
    expected = [number("[CLS]"), *a, number("[SEP]"), *b, number("[SEP]")]
    assert found.ids.tolist() == [expected + [number("[PAD]")] * (16 - len(expected))]
    assert found.types.tolist() == [[0] * (len(a) + 2) + [1] * (len(b) + 1) + [0] * (16 - len(expected))]
    assert found.mask.tolist() == [[i < len(expected) for i in range(16)]]
    assert (found.ids.dtype, found.types.dtype, found.mask.dtype) == (np.int32, np.int8, np.bool_)


def test_the_longer_text_is_cut(wordpiece):
    single = wordpiece.encode("the red tower", add_special_tokens=False).ids
    found = encode.encode(wordpiece, ["the red tower"], ["river"], 5)
    assert found.ids[0, 1:3].tolist() == [single[0], wordpiece.token_to_id("[SEP]")]
    assert found.ids[0, 3] == wordpiece.token_to_id("river")


def test_chunks_don_t_show(bpe, monkeypatch):
    whole = encode.encode(bpe, FIRST, SECOND, 12)
    monkeypatch.setattr(encode, "_CHUNK", 2)
    parts = encode.encode(bpe, FIRST, SECOND, 12)
    assert all(np.array_equal(getattr(whole, name), getattr(parts, name)) for name in ("ids", "types", "mask"))


def test_the_tokenizer_stays_as_it_is(bpe):
    before = bpe.to_str()
    encode.encode(bpe, FIRST, None, 8)
    assert bpe.to_str() == before


def test_no_texts_and_no_room(wordpiece):
    assert encode.encode(wordpiece, [], [], 8).ids.shape == (0, 8)
    with pytest.raises(InputError, match=r"length=3: 3 special tokens"):
        encode.encode(wordpiece, ["a"], ["b"], 3)


def test_a_tokenizer_without_padding_is_refused(wordpiece):
    bare = tokenizers.Tokenizer.from_str(wordpiece.to_str())
    bare.no_padding()
    with pytest.raises(InputError, match="no padding token"):
        encode.encode(bare, ["a"], None, 8)


def real_directory(name: str, tmp_path: Path, whole: bool) -> Path:
    """Copy a real tokenizer into a model directory, with its tokenizer.json or without."""
    if not (REAL / name).is_dir():
        pytest.skip("no real data beside the checkout")
    directory = tmp_path / name
    shutil.copytree(REAL / name, directory)
    if not whole:
        (directory / "tokenizer.json").unlink(missing_ok=True)
    kind = {"bert_uncased": "bert", "gpt2": "gpt_neo"}[name]
    (directory / "config.json").write_text(json.dumps({"model_type": kind}))
    return directory


@pytest.mark.parametrize(("name", "whole"), [("bert_uncased", False), ("gpt2", False), ("gpt2", True)])
@pytest.mark.parametrize("length", [10, 24])
def test_real_vocabularies_equal_transformers(name, whole, length, tmp_path):
    directory = real_directory(name, tmp_path, whole)
    from transformers import BertTokenizer, GPT2Tokenizer

    kind = BertTokenizer if name == "bert_uncased" else GPT2Tokenizer
    files = {"vocab": str(directory / ("vocab.txt" if name == "bert_uncased" else "vocab.json"))}
    reference = kind(**files, **({} if name == "bert_uncased" else {"merges": str(directory / "merges.txt")}))
    if reference.pad_token is None:
        reference.pad_token = reference.eos_token
    assert len(reference) == {"bert_uncased": 30522, "gpt2": 50257}[name]

    tokenizer = tokenizer_files.tokenizer_file(directory)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    tokenizer = tokenizer_files.load(tmp_path / "tokenizer.json")
    for second in (SECOND, None):
        expected = reference(
            FIRST,
            second,
            padding="max_length",
            max_length=length,
            truncation="longest_first",
            return_token_type_ids=True,
            return_tensors="np",
        )
        found = encode.encode(tokenizer, FIRST, second, length)
        assert np.array_equal(found.ids, expected["input_ids"])
        assert np.array_equal(found.mask, expected["attention_mask"])
        if name == "bert_uncased":
            assert np.array_equal(found.types, expected["token_type_ids"])


def without_separator(content):
    del content["post_processor"]["special_tokens"]["[SEP]"]


def with_unknown(form):
    def change(content):
        content["post_processor"][form][0]["SpecialToken"]["id"] = "[NONE]"

    return change


@pytest.mark.parametrize("change", [without_separator, with_unknown("single"), with_unknown("pair"), None])
@pytest.mark.parametrize("read", [lambda d: tokenizer_files.load(d / "tokenizer.json"), tokenizer_files.tokenizer_file])
def test_a_damaged_tokenizer_or_one_whose_parts_do_not_fit_together_is_refused(tmp_path, wordpiece, change, read):
    content = json.loads(wordpiece.to_str())
    if change:
        change(content)
    (tmp_path / "tokenizer.json").write_text(json.dumps(content) if change else wordpiece.to_str()[:200])
    with pytest.raises(InputError, match=r"tokenizer\.json: not a tokenizer: .*; delete it"):
        read(tmp_path)


def test_directories_without_tokenizer_or_padding_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"none\.json: missing"):
        tokenizer_files.load(tmp_path / "none.json")
    with pytest.raises(InputError, match=r"no tokenizer; it needs tokenizer\.json"):
        tokenizer_files.tokenizer_file(tmp_path)
    (tmp_path / "vocab.txt").write_text("a\nb\n")
    with pytest.raises(InputError, match="transformers can't read the tokenizer"):
        tokenizer_files.tokenizer_file(tmp_path)
    tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0}, "a")).save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(InputError, match=r"none of the padding tokens \[PAD\]"):
        tokenizer_files.tokenizer_file(tmp_path)


def test_limits_of_the_model(wordpiece):
    tokens = wordpiece.get_vocab_size()
    model = SimpleNamespace(config=SimpleNamespace(max_position_embeddings=32, vocab_size=tokens))
    encode.check_positions(model, 32)
    tokenizer_files.check_vocabulary(model, wordpiece, Path("there"))
    with pytest.raises(InputError, match="length=33: the model has 32 positions"):
        encode.check_positions(model, 33)
    model.config.vocab_size -= 1
    with pytest.raises(InputError, match=f"there: has {tokens} tokens, the model's vocab_size is {tokens - 1}"):
        tokenizer_files.check_vocabulary(model, wordpiece, Path("there"))


def test_a_llama_pads_with_its_end_of_text_and_begins_every_text(tmp_path):
    vocabulary = {"<unk>": 0, "<s>": 1, "</s>": 2, "a": 3}
    plain = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, "<unk>"))
    plain.save(str(tmp_path / "tokenizer.json"))
    tokenizer = tokenizer_files.tokenizer_file(tmp_path)
    assert tokenizer.padding["pad_id"] == 2
    model = SimpleNamespace(config=SimpleNamespace(model_type="llama", bos_token_id=1))
    with pytest.raises(InputError, match=r"there: the tokenizer adds the tokens \[\] to a text.*begin of text, \[1\]"):
        tokenizer_files.check_begin(model, tokenizer, Path("there"))
    for template in ("<s> $A", "<s> $A </s>"):
        tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
            single=template, special_tokens=[("<s>", 1), ("</s>", 2)]
        )
        if template == "<s> $A":
            tokenizer_files.check_begin(model, tokenizer, Path("there"))
    with pytest.raises(InputError, match=r"adds the tokens \[1, 2\]"):
        tokenizer_files.check_begin(model, tokenizer, Path("there"))
    model.config.model_type = "opt"
    tokenizer_files.check_begin(model, tokenizer, Path("there"))
