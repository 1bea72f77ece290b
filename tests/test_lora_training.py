"""Adapters of query and value, batches in parts, and recomputed activations."""

import copy

import numpy as np
import pytest
import tiny
import torch
from accelerate.state import AcceleratorState
from torch.optim.optimizer import register_optimizer_step_pre_hook

from flexround.tasks import text_training
from flexround.tasks.options import AdapterTrainSettings

IDS = np.random.default_rng(0).integers(1, 30, size=(11, 8)).astype(np.int64)
LORA = {"rank": 2, "alpha": 6, "dropout": 0.0}


def make(dtype=torch.float64):
    return tiny.make("llama", num_attention_heads=4, num_key_value_heads=2, initializer_range=0.3).to(dtype)


def loss(model, batch, _):
    return model(input_ids=batch["ids"], labels=batch["ids"], use_cache=False).loss


def train(model, **settings):
    standard = {"epochs": 2, "batch": 4, "lr": 1e-2, "clip": 1e9, "weight_decay": 0.1}
    checked = AdapterTrainSettings.model_validate(standard | settings)
    return text_training.train_adapters(model, {"ids": IDS}, loss, checked)


def is_adapted(name):
    return name.endswith(("q_proj.weight", "v_proj.weight"))


# adapters


def test_training_changes_query_and_value_by_the_rank():
    model, before, state = make(), make(), torch.random.get_rng_state()
    facts = train(model, lora=LORA, epochs=8)
    assert torch.equal(state, torch.random.get_rng_state())
    assert facts["steps"] == 8 * 3
    assert facts["loss"] < train(make(), lora=LORA, epochs=1)["loss"] - 0.1
    assert facts["loss"] < train(make(), lora=LORA, epochs=8, eps=100)["loss"] - 0.1, "steps of lr * gradient / 100"
    assert not model.training
    for (name, new), old in zip(model.state_dict().items(), before.state_dict().values(), strict=True):
        if is_adapted(name):
            assert torch.linalg.matrix_rank(new - old, atol=1e-9).item() == 2, name
        else:
            assert torch.equal(new, old), name


# a frozen base in half precision


@pytest.fixture
def other_precision():
    """Let a test train in another precision than others of this process: accelerate keeps the first one."""
    AcceleratorState._reset_state(True)
    yield
    AcceleratorState._reset_state(True)


def test_a_half_precision_base_stays_and_adapters_are_float32(other_precision):
    base = make(torch.float32)
    with torch.no_grad():
        for parameter in base.parameters():
            parameter.copy_(parameter.half())  # as the files of LLaMA are
    whole, half, seen = copy.deepcopy(base), copy.deepcopy(base), {}

    def watch(optimizer, *_):
        seen["learned"] = {(p.dtype, p.requires_grad) for group in optimizer.param_groups for p in group["params"]}
        seen["linears"] = {half.get_parameter(name).dtype for name in names}

    names = [f"model.layers.{i}.mlp.{name}.weight" for i in range(2) for name in ("gate_proj", "up_proj", "down_proj")]
    hook = register_optimizer_step_pre_hook(watch)
    train(half, lora=LORA, precision="bf16", frozen="float16")
    hook.remove()
    assert seen == {"learned": {(torch.float32, True)}, "linears": {torch.float16}}
    train(whole, lora=LORA, precision="bf16")
    for (name, value), old in zip(half.named_parameters(), base.parameters(), strict=True):
        if is_adapted(name):
            assert value.dtype == torch.float32, "merged in full"
            change, other = value - old, whole.get_parameter(name) - old
            assert change.norm() > 0
            torch.testing.assert_close(change, other, atol=0.1 * other.abs().max().item(), rtol=0.1)
        else:
            assert torch.equal(value.float(), old)
            assert value.dtype == (torch.float16 if "_proj" in name else torch.float32)


# batches in parts, recomputed activations


@pytest.mark.parametrize("settings", [{"at_once": 3}, {"at_once": 1, "lora": LORA}, {"checkpointing": True}])
def test_memory_is_saved_without_a_change_of_the_result(settings):
    model, expected = make(), make()
    found = train(model, **settings)
    facts = train(expected, lora=settings.get("lora"))
    torch.testing.assert_close(model.state_dict(), expected.state_dict())
    assert found["loss"] == pytest.approx(facts["loss"])
    assert found["steps"] == facts["steps"]
