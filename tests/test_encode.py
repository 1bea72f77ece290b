"""Token ids of texts and pairs, and tokenizer files."""

import itertools
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tokenizers
import transformers

from flexround.errors import InputError
from flexround.models import tokenizer_files
from flexround.tasks import encode
from synthetic import tokenizers as mini

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


@pytest.mark.parametrize("kind", ["bert", "gpt2"])
def test_ids_are_those_of_transformers_in_whatever_chunks(kind, wordpiece, tmp_path, monkeypatch):
    monkeypatch.setattr(encode, "CHUNK", 2)
    if kind == "bert":
        vocabulary = wordpiece.get_vocab()
        (tmp_path / "vocab.txt").write_text("\n".join(sorted(vocabulary, key=vocabulary.get)))
        reference = transformers.BertTokenizer(vocab=str(tmp_path / "vocab.txt"))
    else:
        learned = tokenizers.ByteLevelBPETokenizer()
        learned.train_from_iterator(CORPUS, 320, special_tokens=["<|endoftext|>"], show_progress=False)
        files = learned.save_model(str(tmp_path))
        reference = transformers.GPT2Tokenizer(vocab=files[0], merges=files[1])
        reference.pad_token = reference.eos_token
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
    tokenizer = tokenizer_files.padded(tokenizer_files.find(tmp_path))
    options = {"padding": "max_length", "truncation": "longest_first", "return_tensors": "np"}
    for length, second in itertools.product((10, 24), (SECOND, None)):
        expected = reference(FIRST, second, max_length=length, return_token_type_ids=True, **options)
        found = encode.encode(tokenizer, FIRST, second, length)
        assert np.array_equal(found.ids, expected["input_ids"])
        assert np.array_equal(found.mask, expected["attention_mask"])
        if kind == "bert":
            assert np.array_equal(found.types, expected["token_type_ids"])
        assert (found.ids.dtype, found.types.dtype, found.mask.dtype) == (np.int32, np.int8, np.bool_)
    assert encode.encode(tokenizer, [], [], 8).ids.shape == (0, 8)


def test_a_tokenizer_and_its_padding_are_needed(tmp_path):
    with pytest.raises(InputError, match=r"no tokenizer; it needs tokenizer\.json"):
        tokenizer_files.find(tmp_path)
    tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0}, "a")).save(str(tmp_path / "tokenizer.json"))
    bare = tokenizer_files.padded(tokenizer_files.find(tmp_path))
    with pytest.raises(InputError, match=r"no padding token, none of \[PAD\], .*; add one"):
        encode.encode(bare, ["a"], None, 8)


def test_a_decoder_that_classifies_must_know_the_padding(wordpiece):
    number = wordpiece.padding["pad_id"]
    decoder, bert = (
        SimpleNamespace(config=SimpleNamespace(pad_token_id=None, **of)) for of in ({}, {"type_vocab_size": 2})
    )
    encode.check_positions(decoder, 10**6)
    encode.check_padding(bert, wordpiece, Path("there"))
    with pytest.raises(InputError, match=rf"there: pads with token {number}, the model's pad_token_id is None; give"):
        encode.check_padding(decoder, wordpiece, Path("there"))
    decoder.config.pad_token_id = number
    encode.check_padding(decoder, wordpiece, Path("there"))


def test_a_llama_pads_with_its_end_of_text_and_begins_every_text(tmp_path):
    vocabulary = {"<unk>": 0, "<s>": 1, "</s>": 2, "a": 3}
    plain = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, "<unk>"))
    plain.save(str(tmp_path / "tokenizer.json"))
    tokenizer = tokenizer_files.padded(tokenizer_files.find(tmp_path))
    assert tokenizer.padding["pad_id"] == 2
    model = SimpleNamespace(config=SimpleNamespace(model_type="llama", bos_token_id=1))
    with pytest.raises(InputError, match=r"there: the tokenizer adds \[\] to a text.*begin of text, \[1\]"):
        tokenizer_files.check_begin(model, tokenizer, Path("there"))
    for template in ("<s> $A", "<s> $A </s>"):
        tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
            single=template, special_tokens=[("<s>", 1), ("</s>", 2)]
        )
        if template == "<s> $A":
            tokenizer_files.check_begin(model, tokenizer, Path("there"))
    with pytest.raises(InputError, match=r"adds \[1, 2\]"):
        tokenizer_files.check_begin(model, tokenizer, Path("there"))
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 1)])
    tokenizer_files.check_begin(model, tokenizer, Path("there"))
    saved_again = tokenizers.Tokenizer(tokenizers.models.BPE({"▁": 0, "a": 1, "▁a": 2, "<s>": 3}, [("▁", "a")]))
    saved_again.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(prepend_scheme="first")
    saved_again.post_processor = tokenizers.processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 1)])
    with pytest.raises(InputError, match=r"\['▁a'\] for ' a'; .* files that transformers 4 wrote"):
        tokenizer_files.check_begin(model, saved_again, Path("there"))
    saved_again.pre_tokenizer = None
    saved_again.normalizer = tokenizers.normalizers.Sequence(
        [tokenizers.normalizers.Prepend("▁"), tokenizers.normalizers.Replace(" ", "▁")]
    )
    tokenizer_files.check_begin(model, saved_again, Path("there"))
