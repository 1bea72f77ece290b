"""Adapters of query and value, batches in parts, and recomputed activations."""

import copy

import numpy as np
import pytest
import torch

from flexround.errors import SettingsError
from flexround.models import transformer
from flexround.tasks.text import lora_training
from flexround.tasks.text import training as text_training
from flexround.tasks.text.lora_training import AdapterTrainSettings, LoraSettings

LLAMA = {
    "vocab_size": 30,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 12,
    "initializer_range": 0.3,
}
IDS = np.random.default_rng(0).integers(1, 30, size=(11, 8)).astype(np.int64)
LORA = {"rank": 2, "alpha": 6, "dropout": 0.0}


def make(dtype=torch.float64):
    torch.set_num_threads(1)
    return transformer.llama("causal-lm", seed=1, **LLAMA).to(dtype)


def loss(model, batch, _):
    return model(input_ids=batch["ids"], labels=batch["ids"], use_cache=False).loss


def train(model, **settings):
    standard = {"epochs": 2, "batch": 4, "lr": 1e-2, "clip": 1e9, "weight_decay": 0.1}
    checked = AdapterTrainSettings.model_validate(standard | settings)
    return lora_training.train(model, {"ids": IDS}, loss, checked)


def same(one, two, **tolerance):
    for (name, value), other in zip(one.state_dict().items(), two.state_dict().values(), strict=True):
        torch.testing.assert_close(value, other, msg=name, **tolerance)


def is_adapted(name):
    return name.endswith(("q_proj.weight", "v_proj.weight"))


# adapters


def test_merged_weights_are_the_base_plus_the_adapters():
    model, before = make(), make()
    adapted = lora_training.attach(model, lora_training.QUERY_AND_VALUE, LoraSettings(**LORA), seed=0)
    ids, generator = torch.from_numpy(IDS), torch.Generator().manual_seed(0)
    with torch.no_grad():
        assert torch.equal(model.eval()(ids).logits, before(ids).logits), "at first they change nothing"
        for name, parameter in model.named_parameters():
            assert parameter.requires_grad == ("lora_" in name), name
            if "lora_B" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator))
    layers = [(x.self_attn.q_proj, x.self_attn.v_proj) for x in model.model.layers]
    factors = [[(p.lora_B["default"].weight, p.lora_A["default"].weight) for p in pair] for pair in layers]
    with torch.no_grad():
        expected = model(ids).logits
        lora_training.merge(adapted)
        torch.testing.assert_close(model(ids).logits, expected)
        assert not torch.allclose(expected, before(ids).logits, atol=0.1)
    assert [type(module) for module in model.modules()] == [type(module) for module in before.modules()]
    assert all(parameter.requires_grad for parameter in model.parameters())
    for layer, old, pair in zip(model.model.layers, before.model.layers, factors, strict=True):
        for name, (b, a) in zip(lora_training.QUERY_AND_VALUE, pair, strict=True):
            new, base = (getattr(x.self_attn, name).weight for x in (layer, old))
            torch.testing.assert_close(new, base + 3 * b.double() @ a.double())  # 3 is alpha / rank


def test_training_changes_query_and_value_alone_by_the_rank_of_the_adapters():
    model, before, state = make(), make(), torch.random.get_rng_state()
    facts = train(model, lora=LORA)
    assert torch.equal(state, torch.random.get_rng_state())
    assert facts["steps"] == 2 * 3
    assert not model.training
    for (name, new), old in zip(model.state_dict().items(), before.state_dict().values(), strict=True):
        if is_adapted(name):
            assert torch.linalg.matrix_rank(new - old, atol=1e-9).item() == 2, name
        else:
            assert torch.equal(new, old), name


def test_without_adapters_everything_is_trained():
    model, before, plain = make(), make(), make()
    train(model)
    text_training.train(
        plain,
        {"ids": IDS},
        loss,
        text_training.TrainSettings(epochs=2, batch=4, lr=1e-2, clip=1e9, weight_decay=0.1),
    )
    same(model, plain, rtol=0, atol=0)
    assert not any(torch.equal(new, old) for new, old in zip(model.parameters(), before.parameters(), strict=True))


def test_the_loss_falls():
    facts = [train(make(), lora=LORA, epochs=epochs) for epochs in (1, 8)]
    assert facts[1]["loss"] < facts[0]["loss"] - 0.1


def test_a_model_without_query_and_value_is_refused():
    model = transformer.gpt2("causal-lm", vocab_size=20, n_embd=8, n_layer=1, n_head=2, n_positions=8)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(SettingsError, match="lora: a gpt2 has no q_proj; leave `lora` out"):
        train(model, lora=LORA)
    assert list(model.state_dict()) == list(before)


# batches in parts, recomputed activations


@pytest.mark.parametrize("settings", [{"at_once": 3}, {"at_once": 1, "lora": LORA}, {"checkpointing": True}])
def test_memory_is_saved_without_a_change_of_the_result(settings):
    model, expected = make(), make()
    found = train(model, **settings)
    facts = train(expected, lora=settings.get("lora"))
    same(model, expected)
    assert found["loss"] == pytest.approx(facts["loss"])
    assert found["steps"] == facts["steps"]


def test_no_more_rows_at_once_than_asked():
    model, rows = make(torch.float32), []
    model.model.embed_tokens.register_forward_pre_hook(lambda _, arguments: rows.append(len(arguments[0])))
    train(model, epochs=1, at_once=3)
    assert rows == [3, 1, 3, 1, 3], "of 11 examples in batches of 4"


def test_activations_are_computed_again_in_training_only():
    model, calls = make(torch.float32), []
    model.model.layers[0].mlp.register_forward_pre_hook(lambda *_: calls.append(1))
    train(model, epochs=1, checkpointing=True, lora=LORA)
    assert len(calls) == 2 * 3
    assert not model.is_activation_checkpointing
