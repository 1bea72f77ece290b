"""The mini language models: how they start."""

import pytest
import torch

from flexround.mini import language_models
from flexround.models import transformer

COMMON = {"vocab_size": 200, "hidden_size": 64, "intermediate_size": 64, "max_position_embeddings": 32}
BERT = COMMON | {"num_hidden_layers": 2, "num_attention_heads": 2, "initializer_range": 0.12}
GPT_NEO = COMMON | {"num_layers": 2, "num_heads": 2, "attention_types": [[["global", "local"], 1]], "pad_token_id": 0}
GPT_NEO |= {"bos_token_id": 0, "eos_token_id": 0, "initializer_range": 0.05}


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
    assert len(changed) == 2
    position = next(name for name in changed if "position" in name or "wpe" in name)
    torch.testing.assert_close(model.get_parameter(position), 0.3 * usual.get_parameter(position))


def test_a_word_attends_to_its_repetition_from_the_start():
    model = language_models.bert(head="masked-lm", attn_implementation="eager", **BERT)
    ids = torch.arange(10, 30).unsqueeze(0)
    ids[0, 15] = ids[0, 4]
    with torch.no_grad():
        weights = model(input_ids=ids, output_attentions=True).attentions[0][0]
    others = [column for column in range(20) if column not in (4, 15)]
    assert (weights[:, 15, 4] > 5 * weights[:, 15, others].mean(-1)).all()
