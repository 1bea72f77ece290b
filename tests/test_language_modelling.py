"""Language modelling: blocks, perplexity, calibration, and the whole chain on a tiny scale."""

import itertools
import math
from types import SimpleNamespace

import numpy as np
import pytest
import tiny
import tokenizers
import torch
from tokenizers import models, pre_tokenizers, processors

from flexround.errors import InputError, NumericalError
from flexround.io import artifacts
from flexround.tasks import encode, text, text_metrics
from flexround.tasks.language import LanguageModelling, LanguageOptions

CPU = torch.device("cpu")
FIT = {"epochs": 2, "batch": 4, "lr": 1e-2}
TEXTS = [" ".join("abcdefghij"[: 1 + index % 10]) for index in range(50)]


def letters(begin=False):
    """Return a tokenizer of single letters, a is 1; ``begin``: with a 0 before each text, as OPT's and LLaMA's."""
    vocabulary = {"<s>": 0} | {letter: index for index, letter in enumerate("abcdefghij", start=1)}
    tokenizer = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token="<s>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.enable_padding(pad_id=0, pad_token="<s>", length=8)
    tokenizer.enable_truncation(2)
    if begin:
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return tokenizer


def cut(texts, size, count=1, **options):
    return [part.tolist() for part in encode.blocks(texts, letters(**options), size, count)]


# blocks


def test_blocks_by_hand():
    texts = ["a b c d", "", "e", "f g"]
    assert cut(texts, 3, 2) == [[[1, 2, 3], [4, 5, 6]]]
    assert cut(texts, 2, 2) == [[[1, 2], [3, 4]], [[5, 6]]]
    assert cut(texts, 4, 2, begin=True) == [[[0, 1, 2, 3], [4, 0, 0, 5]]], "blank rows begin too"
    (found,) = encode.blocks(texts, letters(), 3, 2)
    assert found.dtype == np.int32
    with pytest.raises(InputError, match="3 tokens of text are less than one block"):
        cut(["a b", "c"], 4)


def test_the_tail_of_each_group_of_rows_is_dropped_as_by_run_clm():
    expected = []
    for start in range(0, len(TEXTS), 8):  # group_texts of run_clm
        joined = ["abcdefghij".index(letter) + 1 for text in TEXTS[start : start + 8] for letter in text.split()]
        expected += [joined[place : place + 7] for place in range(0, len(joined) // 7 * 7, 7)]
    found = [part.tolist() for part in encode.blocks(TEXTS, letters(), 7, 3, joined=8)]
    assert list(itertools.chain(*found)) == expected


# perplexity; that losses are those of a plain loop, test_commonsense.py says


def test_perplexity_and_its_error():
    losses = np.random.default_rng(0).normal(3.0, 0.2, 400)
    found = text_metrics.perplexity(losses)
    assert found.value == pytest.approx(math.exp(sum(losses) / 400))
    assert found.stderr == pytest.approx(found.value * losses.std(ddof=1) / 20, rel=0.1), "delta method"
    shifted = text_metrics.perplexity(losses + 0.5)
    np.testing.assert_allclose(shifted.replicates, found.replicates * math.exp(0.5))
    assert found.scores is None
    with pytest.raises(NumericalError, match="no finite perplexity"):
        text_metrics.perplexity(losses + 1000)


@pytest.fixture
def place(tmp_path):
    """Make a task of letters, its data and the network's directory."""
    task = LanguageModelling(LanguageOptions(name="ptb", block_size=8))
    rng = np.random.default_rng(0)
    for split, lines in (("train", 60), ("valid", 40)):
        drawn = [" ".join(rng.choice(list("abcdefghij"), size=rng.integers(1, 12))) for _ in range(lines)]
        artifacts.write_text(tmp_path / f"sources/ptb/ptb.{split}.txt", "\n".join(drawn))
    task.prepare(tmp_path / "data", tmp_path / "sources")
    artifacts.write_text(tmp_path / "network/tokenizer.json", letters().to_str())
    model = tiny.make("gpt_neo", vocab_size=16, max_position_embeddings=64, initializer_range=0.5)
    return SimpleNamespace(task=task, model=model, data=tmp_path / "data", network=tmp_path / "network")


def ids_of(place, split):
    """Return all token ids of a split."""
    return [" abcdefghij".index(letter) for row in text.read_rows(place.data, split) for letter in row["text"].split()]


def evaluated(place, batch=5):
    return place.task.evaluate(place.model, place.data, CPU, batch, place.network, "validation")


# training


def test_training_lowers_the_perplexity_and_takes_every_block(place):
    before = evaluated(place).metrics["ppl"]
    facts = place.task.finetune(place.model, place.data, FIT, place.network)
    assert facts["steps"] == 2 * math.ceil(len(ids_of(place, "train")) // 8 / 4)
    assert evaluated(place).metrics["ppl"] < before


# calibration


def drawn(place, samples, seed):
    return place.task.inputs(place.task.calibration(place.data, samples, seed), place.network)


def test_calibration_inputs_are_different_training_blocks(place):
    ids = ids_of(place, "train")
    blocks = [tuple(ids[start : start + 8]) for start in range(0, len(ids) - 7, 8)]
    inputs = drawn(place, 20, 0)
    assert (inputs.x.shape, inputs.x.dtype, inputs.mask) == ((20, *place.task.input_shape), torch.int64, None)
    assert not inputs.x[:, 1].any()
    found = {tuple(row) for row in inputs.x[:, 0].tolist()}
    assert found <= set(blocks)
    assert len(found) == 20
    assert torch.equal(drawn(place, 7, 0).x, inputs.x[:7])
    assert not torch.equal(drawn(place, 20, 1).x, inputs.x)
    with pytest.raises(InputError, match=f"samples=99: the training set has {len(blocks)} blocks"):
        drawn(place, 99, 0)
