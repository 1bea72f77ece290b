"""What a killed job finds again: trainings go on at their epoch, evaluations at their data set, with the same bits.

Images do so in test_hardware.
"""

import contextlib
import os
import shutil
import sys
from argparse import Namespace
from importlib import metadata
from types import SimpleNamespace

import numpy as np
import pytest
import test_commonsense
import test_lora_training
import torch
import toy

from flexround.io import resume
from flexround.jobs import execution
from flexround.tasks import harness, text_training
from flexround.tasks.options import AdapterTrainSettings

place, prepared = test_commonsense.place, test_commonsense.prepared


class KilledError(BaseException):
    """In the place of SIGKILL: nothing handles it."""


@pytest.fixture(autouse=True)
def everything_is_worth_it(monkeypatch):
    monkeypatch.setattr(resume, "WORTH_SECONDS", 0.0)


def trainer(train, settings, make, batch_loss, rows=11):
    """Return a training that may die at a step; it gives facts, weights and the number of steps."""

    def training(died_at=None):
        model, calls = make(), []

        def loss(network, batch, generator):
            calls.append(None)
            if len(calls) == died_at:
                raise KilledError
            return batch_loss(network, batch, generator)

        facts = train(model, {"ids": test_lora_training.IDS[:rows]}, loss, settings)
        return facts, model.state_dict(), len(calls)

    return training


def llama_trainer(**settings):
    """Return a training of all weights, or of adapters; the loss draws from the generator that it is given."""
    usual = {"epochs": 4, "batch": 4, "lr": 1e-2, "weight_decay": 0.1, "warmup": 0.2}

    def loss(network, batch, generator):
        return test_lora_training.loss(network, batch, generator) * (1 + torch.rand((), generator=generator))

    def make():
        model = test_lora_training.make(torch.float32)
        model.register_parameter("unused", torch.nn.Parameter(torch.zeros(1)))  # so the optimizer has no state of it
        return model

    checked = AdapterTrainSettings.model_validate(usual | settings)
    return trainer(text_training.train_adapters, checked, make, loss)


def small_trainer(dropout):
    """Return a training of a network with dropout, whose seed is another one in each process."""

    def make():
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.Dropout(dropout), torch.nn.Linear(4, 1))
        torch.manual_seed(int(os.environ.get("RANK", "0")))
        return model

    def loss(network, batch, _):
        return network(batch["ids"] / 30).square().mean()

    settings = text_training.TrainSettings(epochs=3, batch=2, lr=0.01)
    return trainer(text_training.train, settings, make, loss, rows=8)


@pytest.mark.parametrize("adapters", [{}, {"lora": {"rank": 2, "dropout": 0.3}}], ids=["all weights", "adapters"])
def test_a_killed_training_goes_on_at_its_epoch_with_the_same_bits(tmp_path, adapters):
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


def test_the_machine_and_its_threads_decide_where_work_is_kept(monkeypatch):
    """So do settings, code and inputs, see test_stage_guards."""
    job = SimpleNamespace(explained=(), model_dump_json=lambda exclude: "{}")

    def name(device="cpu"):
        return resume.fingerprint(job, {"data": "1"}, torch.device(device))

    names = [name()]
    with monkeypatch.context() as patch:
        patch.setattr(torch, "get_num_threads", lambda: 77)
        names.append(name())
    with monkeypatch.context() as patch:
        patch.setattr(torch, "__version__", "0.1")
        names.append(name())
    with monkeypatch.context() as patch:
        patch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "VSX")
        names.append(name())
    for gpu in ("A100", "H100"):
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda _, gpu=gpu: gpu)
        names.append(name("cuda:0"))
    assert len(set(names)) == 6


def test_packages_decide_where_work_is_kept(tmp_path, monkeypatch):
    stage = SimpleNamespace(run=lambda given: kept.append(given.state))
    monkeypatch.setitem(sys.modules, "my_stage", stage)
    (tmp_path / "job.json").write_text("{}")
    kept = []
    for version in ("0.1", "0.1", "0.2"):
        monkeypatch.setattr(metadata, "version", lambda name, version=version: version)
        given = Namespace(module="my_stage", job=tmp_path / "job.json", state=tmp_path / "state", threads=1)
        assert execution.run(given) == 0
    assert kept[0] == kept[1] != kept[2]


def test_a_part_is_replaced_whole(tmp_path):
    value = torch.arange(3)
    resume.save("part", {"group/x": value})
    assert resume.load("part") is None, "no stage says where"
    with contextlib.suppress(KilledError), resume.kept(tmp_path / "state"):
        assert resume.load("part") is None
        for number in range(2):
            resume.save("part", {"group/x": value + number}, number=number)
        raise KilledError
    assert len(list((tmp_path / "state").iterdir())) == 1
    with resume.kept(tmp_path / "state"):
        tensors, facts = resume.load("part")
        assert (tensors["group/x"].tolist(), facts) == ([1, 2, 3], {"number": 1})


def test_work_that_was_killed_while_it_was_removed_is_not_gone_on_with(tmp_path, monkeypatch):
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


def test_little_work_is_not_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(resume, "WORTH_SECONDS", 3600.0)
    monkeypatch.setattr(resume, "save", lambda *_, **__: pytest.fail("it was kept"))
    with resume.kept(tmp_path / "state"):
        small_trainer(0.5)()
