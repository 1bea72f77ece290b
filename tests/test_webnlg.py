"""WebNLG: encoding, loss, adapters, decoding and scores; the chain of its jobs is in test_second_device.py."""

import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
import tiny
import torch
from tensors import randn

from flexround.io import artifacts
from flexround.tasks import text, webnlg
from flexround.tasks.webnlg import WebNLG, WebNLGOptions, WebNLGTrainSettings, beam
from synthetic import files, tokenizers

CPU = torch.device("cpu")
WIDTH = 16
TRAIN = {"epochs": 1, "batch": 16, "lr": 1e-2, "rank": 2}


def spell(words):
    """Return the ids of a text whose tokens are single bytes; 0 is the end of text."""
    return [SPELLING.token_to_id("Ġ" if letter == " " else letter) for letter in words]


SPELLING = tokenizers.train([], "bpe", 257)


def gpt2(positions=400):
    return tiny.make("gpt2", vocab_size=257, n_embd=WIDTH, n_positions=positions, initializer_range=0.3)


@pytest.fixture
def place(tmp_path):
    """Make a task with single bytes as tokens, its data, a model and the network's directory."""
    files.webnlg(tmp_path / "webnlg", 30, 4)
    task = WebNLG(WebNLGOptions(max_length=400, heldout=5, beams=2, steps=6))
    task.prepare(tmp_path / "data", tmp_path)
    artifacts.write_text(tmp_path / "network/tokenizer.json", SPELLING.to_str())
    return SimpleNamespace(task=task, model=gpt2(), data=tmp_path / "data", network=tmp_path / "network")


# encoding


def test_encoding_by_hand(place):
    task = WebNLG(WebNLGOptions(max_length=10))
    rows = [{"context": "a : b", "reference": "c"}, {"context": "ab", "reference": "cdefghij"}]
    found = task.encode(rows, place.network)
    assert found.ids.tolist() == [[*spell("a : b"), 0, *spell(" c"), 0, 0], [*spell("ab"), 0, *spell(" cdefgh")]]
    assert found.types.tolist() == [[0] * 6 + [1, 1, 1, 0], [0] * 3 + [1] * 7], "sentence and end, no padding"
    assert found.mask.tolist() == [[True] * 9 + [False], [True] * 10], "what is too long is cut"
    assert (found.ids.dtype, found.types.dtype) == (np.int32, np.int8)


# training


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_by_hand(smoothing):
    logits = randn(2, 5, 7)
    types = [[0, 0, 1, 1, 0], [0, 1, 1, 1, 1]]
    ids = [[3, 0, 5, 0, 0], [0, 6, 2, 4, 0]]
    inputs = {"input_ids": torch.tensor(ids), "token_type_ids": torch.tensor(types)}
    losses = []
    for row, place in ((0, 2), (0, 3), (1, 1), (1, 2), (1, 3), (1, 4)):
        logs = [-math.log(share) for share in logits[row, place - 1].double().softmax(0).tolist()]
        losses.append((1 - smoothing) * logs[ids[row][place]] + smoothing * sum(logs) / 7)

    def model(input_ids):
        assert torch.equal(input_ids, inputs["input_ids"])
        return SimpleNamespace(logits=logits)

    model.config = object()
    found = webnlg.completion_loss(model, inputs, smoothing)
    assert found.item() == pytest.approx(sum(losses) / 6, rel=1e-5)


def test_adapters_are_those_of_query_and_value_alone():
    model, before, ids = gpt2(), gpt2(), torch.arange(60).view(3, 20)
    adapted = webnlg.adapt(model, WebNLGTrainSettings(epochs=1, batch=1, lr=1, rank=2, alpha=6))
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=0.1, weight_decay=0.01)
    for _ in range(3):
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    layers = [block.attn.c_attn for block in model.transformer.h]
    factors = [[kind["default"].weight.detach().clone() for kind in (x.lora_A, x.lora_B)] for x in layers]
    adapted.merge_and_unload()
    assert sum(p.numel() for p in trained) == 2 * (4 * WIDTH + 3 * WIDTH * 4), "A and B of two layers"
    query, key, value = (slice(start, start + WIDTH) for start in (0, WIDTH, 2 * WIDTH))
    for block, base, (a, b) in zip(model.transformer.h, before.transformer.h, factors, strict=True):
        new, old = block.attn.c_attn.weight, base.attn.c_attn.weight
        torch.testing.assert_close(new[:, query], old[:, query] + 3 * (b[query, :2] @ a[:2]).T)  # 3 is alpha / rank
        torch.testing.assert_close(new[:, value], old[:, value] + 3 * (b[value, 2:] @ a[2:]).T)
        assert torch.equal(new[:, key], old[:, key])


def test_finetuning_changes_queries_and_values_alone(place):
    before, model = gpt2(), gpt2()
    facts = place.task.finetune(model, place.data, TRAIN, place.network)
    rows = webnlg.training_rows(text.read_rows(place.data, "train"))
    assert facts["steps"] == math.ceil(len(rows) / 16), "an example a reference"
    assert [type(module) for module in model.modules()] == [type(module) for module in before.modules()]
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert not model.training
    new, old = model.state_dict(), before.state_dict()
    for name in new:
        assert torch.equal(new[name], old[name]) is not name.endswith("c_attn.weight"), name


# calibration


def test_calibration_sentences_are_not_held_out(place):
    entries = text.read_rows(place.data, "train")
    kept, heldout = place.task.parts(len(entries))
    samples = place.task.calibration(place.data, 40, 0)
    rows = [json.loads(line) for line in samples["examples"].tobytes().splitlines()]
    pairs = {(entries[index]["context"], sentence) for index in kept for sentence in entries[index]["references"]}
    found = [(row["context"], row["reference"]) for row in rows]
    assert set(found) <= pairs
    assert len(set(found)) == 40
    assert not {context for context, _ in found} & {entries[index]["context"] for index in heldout}
    inputs = place.task.inputs(samples, place.network)
    assert inputs.x.shape == (40, *place.task.input_shape)
    written = [SPELLING.decode(ids, False) for ids in (x[0][m].tolist() for x, m in zip(*inputs, strict=True))]
    assert written == [f"{context}<|endoftext|> {sentence}<|endoftext|>" for context, sentence in found]


# evaluation


def evaluated(place, split="validation"):
    return place.task.evaluate(place.model, place.data, CPU, 250, place.network, split)


def test_scores_of_known_texts(place, monkeypatch):
    """Seen contexts get a reference, unseen ones the first words of one."""
    rows = text.read_rows(place.data, "test")
    texts = [row["references"][-1] if row["seen"] else row["references"][0][:25] for row in rows]
    place.task = WebNLG(WebNLGOptions(max_length=500, beams=2, length_penalty=0.5, no_repeat_ngram=3, steps=200))

    def search(model, prompts, options, eos, batch):
        assert model is place.model
        assert prompts == [[*spell(row["context"]), 0] for row in rows]
        assert (options, eos) == (place.task.options, [0])
        assert batch <= 16
        return [[*spell(" " + words), 0] for words in texts]

    monkeypatch.setattr(beam, "search", search)
    found = evaluated(place)
    assert found.n_examples == {"unseen": 4, "seen": 4, "all": 8}
    assert found.metrics["seen"] == pytest.approx(100)
    assert 5 < found.metrics["unseen"] < found.metrics["all"] < 95
    tokens = found.predictions["validation/tokens"]
    assert tokens.shape == (8, 200)
    assert [[token for token in row if token >= 0] for row in tokens.tolist()] == [
        [*spell(" " + words), 0] for words in texts
    ]
    assert list(found.replicates) == ["unseen", "seen", "all"]


def test_held_out_rows_have_one_metric(place):
    found = evaluated(place, "heldout")
    assert list(found.metrics) == ["all"]
    assert found.n_examples == {"all": 5}
    assert found.predictions["heldout/tokens"].shape == (5, 6)
    with torch.no_grad():
        place.model.transformer.ln_f.weight.zero_()
        place.model.transformer.ln_f.bias.copy_(100 * place.model.lm_head.weight[0])
    assert evaluated(place).metrics["all"] == 0
