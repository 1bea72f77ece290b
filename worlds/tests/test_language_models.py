"""The mini language models: how they start."""

import pytest
import torch

from flexround.models import transformer
from synthetic import language_models

COMMON = {"vocab_size": 200, "hidden_size": 64, "intermediate_size": 64, "max_position_embeddings": 32}
BERT = COMMON | {"num_hidden_layers": 2, "num_attention_heads": 2, "initializer_range": 0.12}
GPT_NEO = COMMON | {"num_layers": 2, "num_heads": 2, "attention_types": [[["global", "local"], 1]], "pad_token_id": 0}
GPT_NEO |= {"bos_token_id": 0, "eos_token_id": 0, "initializer_range": 0.05}
GPT2 = {"vocab_size": 200, "n_embd": 64, "n_layer": 2, "n_head": 2, "n_positions": 64, "initializer_range": 0.05}
GPT2 |= {"bos_token_id": 0, "eos_token_id": 0}


CHANGED = {
    "bert": {"bert.embeddings.position_embeddings.weight", "bert.encoder.layer.0.attention.self.key.weight"},
    "gpt_neo": {f"transformer.{name}.weight" for name in ("wte", "wpe")}
    | {f"transformer.h.0.attn.attention.{name}_proj.weight" for name in ("q", "k", "v", "out")},
}


def layers(model):
    """Return (query, key) of each layer."""
    if hasattr(model, "bert"):
        return [(layer.attention.self.query, layer.attention.self.key) for layer in model.bert.encoder.layer]
    return [(layer.attn.attention.q_proj, layer.attn.attention.k_proj) for layer in model.transformer.h]


@pytest.mark.parametrize(("factory", "config"), [("bert", BERT), ("gpt_neo", GPT_NEO)])
def test_only_the_first_layer_and_the_positions_start_otherwise(factory, config):
    model = getattr(language_models, factory)(head="classification", labels=3, **config)
    usual = getattr(transformer, factory)(head="classification", labels=3, **config)
    (query, key), *others = layers(model)
    assert torch.equal(query.weight, key.weight)
    assert query.weight.data_ptr() != key.weight.data_ptr(), "equal at the start, not tied"
    assert all(not torch.equal(query.weight, key.weight) for query, key in others)
    changed = {name for name, value in usual.named_parameters() if not torch.equal(value, model.get_parameter(name))}
    assert changed == CHANGED[factory]


def first_attention(model, ids):
    """The first layer's attention (heads, T, T) from token to token."""
    with torch.no_grad():
        return model(input_ids=ids, output_attentions=True).attentions[0][0]


@pytest.mark.parametrize(
    ("factory", "head", "config"), [("bert", "pretraining", BERT), ("gpt_neo", "causal-lm", GPT_NEO)]
)
def test_a_word_attends_to_its_repetition_from_the_start(factory, head, config):
    model = getattr(language_models, factory)(head=head, attn_implementation="eager", **config)
    ids = torch.arange(10, 30).unsqueeze(0)
    ids[0, 15] = ids[0, 4]
    weights = first_attention(model, ids)
    others = [column for column in range(15) if column != 4]
    assert (weights[:, 15, 4] > 5 * weights[:, 15, others].mean(-1)).all()


def test_gpt_neos_positions_tell_how_far_a_match_is():
    base = language_models.gpt_neo(head="causal-lm", **GPT_NEO).transformer
    positions, words = base.wpe.weight.detach(), base.wte.weight.detach()
    share = 16
    assert not positions[:, share:].any()
    assert not words[:, :share].any()
    slow = positions[:, share // 2]  # the longest wave's cosine falls from the first to the last position
    assert (slow.diff() < 0).all()


def test_gpt2_starts_with_matching_and_copying_heads():
    model = language_models.gpt2(head="causal-lm", attn_implementation="eager", **GPT2)
    ids = torch.arange(10, 40).unsqueeze(0)
    ids[0, 20] = ids[0, 4]
    equal, before = first_attention(model, ids)
    others = [column for column in range(20) if column != 4]
    assert equal[20, 4] > 5 * equal[20, others].mean()
    assert before.diagonal(-1).mean() > 0.8
    last = model.transformer.h[-1].attn
    x = torch.randn(1, 1, 64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(last(x)[0], 0.5 * x)  # a word that attends to itself


def test_a_step_back_is_a_turn_of_the_sinusoids():
    found = language_models.sinusoids(64, 12)
    torch.testing.assert_close(found[1:] @ language_models.one_step_back(64, 12), found[:-1])
