"""What a killed job finds again: trainings go on at their epoch, evaluations at their data set, with the same bits.

Images do so in test_hardware.
"""

import contextlib
import shutil

import numpy as np
import pytest
import test_commonsense
import test_lora_training
import torch
import toy

from flexround.io import resume
from flexround.machine import provenance
from flexround.tasks import harness, text_training
from flexround.tasks.options import AdapterTrainSettings

place = test_commonsense.place


class KilledError(BaseException):
    """In the place of SIGKILL: nothing handles it."""


@pytest.fixture(autouse=True)
def everything_is_worth_it(monkeypatch):
    monkeypatch.setattr(resume, "WORTH_SECONDS", 0.0)


def llama_trainer(**settings):
    """Return a training of all weights, or of adapters, that may die at a step; it gives facts, weights and steps.

    The loss draws from the generator that it is given.
    """
    usual = {"epochs": 4, "batch": 4, "lr": 1e-2, "weight_decay": 0.1, "warmup": 0.2}
    checked = AdapterTrainSettings.model_validate(usual | settings)

    def training(died_at=None):
        model, calls = test_lora_training.make(torch.float32), []
        model.register_parameter("unused", torch.nn.Parameter(torch.zeros(1)))  # so the optimizer has no state of it

        def loss(network, batch, generator):
            calls.append(None)
            if len(calls) == died_at:
                raise KilledError
            return test_lora_training.loss(network, batch, generator) * (1 + torch.rand((), generator=generator))

        facts = text_training.train_adapters(model, {"ids": test_lora_training.IDS[:11]}, loss, checked)
        return facts, model.state_dict(), len(calls)

    return training


@pytest.mark.parametrize("adapters", [{}, {"lora": {"rank": 2, "dropout": 0.3}}], ids=["all weights", "adapters"])
def test_a_killed_training_resumes_with_the_same_bits(tmp_path, adapters):
    train = llama_trainer(**adapters)
    facts, weights, calls = train()
    assert calls == 12
    with pytest.raises(KilledError), resume.kept(tmp_path / "state"):
        train(died_at=8)  # of 4 epochs of 3 steps: in the third one
    assert (tmp_path / "state/training.safetensors").exists()
    with contextlib.suppress(KilledError), resume.kept(tmp_path / "state"):
        found, resumed, calls = train()
        assert (calls, found) == (6, facts)
        assert toy.same(resumed, weights)
        raise KilledError  # after the end of the training
    with resume.kept(tmp_path / "state"):
        found, again, calls = train()
    assert (calls, found) == (0, facts)
    assert toy.same(again, weights)
    assert not (tmp_path / "state").exists()


def test_a_killed_evaluation_goes_on_at_its_data_set(place, tmp_path, monkeypatch):
    whole = test_commonsense.evaluated(place)
    asked, ask = [], harness._ask

    def dying(model, name, data, shots):
        if len(asked) == 5 and "died" not in asked:
            asked.append("died")
            raise KilledError
        asked.append((name, shots))
        return ask(model, name, data, shots)

    monkeypatch.setattr(harness, "_ask", dying)
    with pytest.raises(KilledError), resume.kept(tmp_path / "state"):
        test_commonsense.evaluated(place)
    with resume.kept(tmp_path / "state"):
        resumed = test_commonsense.evaluated(place)
    asked.remove("died")
    assert len(asked) == len(set(asked)) == 14, "each data set once, with each number of shots"
    assert (resumed.metrics, resumed.stderr, resumed.protocol) == (whole.metrics, whole.stderr, whole.protocol)
    for name, values in whole.predictions.items():
        np.testing.assert_array_equal(resumed.predictions[name], values)


def test_machine_threads_and_packages_decide_where_work_is_kept(monkeypatch):
    """So do settings, code and inputs, see test_stage_guards."""

    def name(device="cpu"):
        return resume.fingerprint(torch.device(device), "job", {"data": "1"})

    names = [name()]
    patches = (torch, "get_num_threads", 77), (torch.backends.cpu, "get_cpu_capability", "VSX")
    for owner, function, value in patches:
        with monkeypatch.context() as patch:
            patch.setattr(owner, function, lambda value=value: value)
            names.append(name())
    with monkeypatch.context() as patch:
        patch.setitem(provenance.INSTALLED, "torch", "0.1")
        names.append(name())
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "A100")
    names.append(name("cuda:0"))
    assert len(set(names)) == 5


def test_half_removed_work_is_not_resumed(tmp_path, monkeypatch):
    def killed_midway(directory, **_):
        for path in directory.glob("part*"):
            path.unlink()
            raise KilledError

    state = tmp_path / "state"
    with contextlib.suppress(KilledError), monkeypatch.context() as patch, resume.kept(state):
        for name in ("part", "rest"):
            resume.save(name, {"x": torch.arange(3)})
        patch.setattr(shutil, "rmtree", killed_midway)
    assert list(tmp_path.rglob("rest.safetensors")), "the rest of the removed work is there"
    with resume.kept(state):
        assert resume.load("rest") is None
    assert not list(tmp_path.iterdir())
