"""Token ids of texts and pairs, and tokenizer files."""

import contextlib
import itertools
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tokenizers
import torch
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


def test_a_llama_begins_texts_and_tells_a_space_before_a_word():
    model = SimpleNamespace(config=SimpleNamespace(model_type="llama", bos_token_id=3))
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE({"▁": 0, "a": 1, "▁a": 2, "<s>": 3}, [("▁", "a")]))
    for template, scheme, message in (
        (None, "always", "begin of text"),
        ("<s> $A", "first", "▁a"),
        ("<s> $A", None, ""),
    ):
        if template:
            tokenizer.post_processor = tokenizers.processors.TemplateProcessing(template, special_tokens=[("<s>", 3)])
        tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(prepend_scheme=scheme) if scheme else None
        if not scheme:  # as in files that transformers 4 wrote
            prepend, replace = tokenizers.normalizers.Prepend("▁"), tokenizers.normalizers.Replace(" ", "▁")
            tokenizer.normalizer = tokenizers.normalizers.Sequence([prepend, replace])
        with pytest.raises(InputError, match=message) if message else contextlib.nullcontext():
            tokenizer_files.check_begin(model, tokenizer, Path("there"))


@pytest.mark.parametrize("padded", [True, False])
def test_a_decoders_classifier_reads_the_last_token_of_a_text(padded, wordpiece):
    tokenizer = tokenizers.Tokenizer.from_str(wordpiece.to_str())
    if padded:
        tokenizer.enable_padding(pad_id=7)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.LlamaConfig(vocab_size=tokenizer.get_vocab_size(), **sizes)
    model = transformers.LlamaForSequenceClassification(config).eval()
    encode.pad_alike(model, tokenizer)
    made = encode.encode(tokenizer, FIRST[:3], None, 24)
    batch = model(torch.from_numpy(made.ids), torch.from_numpy(made.mask).long()).logits
    for row, mask, logits in zip(made.ids, made.mask, batch, strict=True):
        torch.testing.assert_close(model(torch.from_numpy(row[mask][None])).logits[0], logits)
