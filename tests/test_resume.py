"""What a killed job finds again: trainings go on at their epoch, evaluations at their data set, with the same bits."""

import contextlib
import re
import shutil
import subprocess
import sys
from types import SimpleNamespace

import image_sets
import numpy as np
import pytest
import stage_calls
import test_commonsense
import test_image_training
import test_lora_training
import torch
from safetensors.torch import load_file

from flexround.errors import InputError
from flexround.io import resume
from flexround.models import transformer
from flexround.tasks.commonsense import harness
from flexround.tasks.text import lora_training
from flexround.tasks.text import training as text_training

place, prepared, small_digits = test_commonsense.place, test_commonsense.prepared, test_image_training.small_digits


class KilledError(BaseException):
    """In the place of SIGKILL: nothing handles it."""


@pytest.fixture(autouse=True)
def everything_is_worth_it(monkeypatch):
    monkeypatch.setattr(resume, "WORTH_SECONDS", 0.0)


def text_trainer(**settings):
    """Return a training of a BERT with dropout, or of adapters; the loss draws from the generator that it is given."""
    usual = {"epochs": 4, "batch": 4, "lr": 1e-2, "weight_decay": 0.1, "warmup": 0.2}
    checked = lora_training.AdapterTrainSettings.model_validate(usual | settings)

    def train(died_at=None):
        model, calls = test_lora_training.make(torch.float32), []

        def loss(network, batch, generator):
            calls.append(None)
            if len(calls) == died_at:
                raise KilledError
            shift = torch.rand((), generator=generator)
            return test_lora_training.loss(network, batch, generator) * (1 + shift)

        facts = lora_training.train(model, {"ids": test_lora_training.IDS}, loss, checked)
        return facts, model.state_dict(), len(calls)

    return train


def bert_trainer():
    settings = text_training.TrainSettings(epochs=4, batch=4, lr=1e-2)
    sizes = {"vocab_size": 30, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}

    def train(died_at=None):
        model, calls = transformer.bert("classification", labels=3, seed=1, intermediate_size=24, **sizes), []

        def loss(network, batch, generator):
            calls.append(None)
            if len(calls) == died_at:
                raise KilledError
            return network(input_ids=batch["ids"]).logits.square().mean()

        facts = text_training.train(model, {"ids": test_lora_training.IDS}, loss, settings)
        return facts, model.state_dict(), len(calls)

    return train


@pytest.mark.parametrize(
    "make",
    [bert_trainer, text_trainer, lambda: text_trainer(lora={"rank": 2, "dropout": 0.3})],
    ids=["bert", "llama", "adapters"],
)
def test_a_killed_training_goes_on_at_its_epoch_with_the_same_bits(tmp_path, make):
    train = make()
    facts, weights, calls = train()
    assert calls == 12
    with pytest.raises(KilledError), resume.kept(tmp_path / "state"):
        train(died_at=8)  # of 4 epochs of 3 steps: in the third one
    assert (tmp_path / "state/training").is_dir()
    with resume.kept(tmp_path / "state"):
        found, resumed, calls = train()
    assert calls == 6
    assert found == facts
    assert all(torch.equal(value, weights[name]) for name, value in resumed.items())
    assert not (tmp_path / "state").exists()


def test_a_training_that_was_killed_after_its_end_is_not_done_again(tmp_path):
    train = text_trainer()
    with contextlib.suppress(KilledError), resume.kept(tmp_path / "state"):
        facts, weights, _ = train()
        raise KilledError
    with resume.kept(tmp_path / "state"):
        found, again, calls = train()
    assert (calls, found) == (0, facts)
    assert all(torch.equal(value, weights[name]) for name, value in again.items())


def test_images_go_on_at_their_epoch(tmp_path, small_digits, monkeypatch):
    from flexround.tasks.images import training

    def train():
        model = test_image_training.tiny_network()
        facts = image_sets.digits_task().finetune(model, small_digits, test_image_training.RECIPE, small_digits)
        return facts, model.state_dict()

    facts, weights = train()
    epochs, train_epoch = [], training._train_epoch

    def dying(*arguments):
        epochs.append(arguments[-1])
        if len(epochs) == 4:
            raise KilledError
        return train_epoch(*arguments)

    monkeypatch.setattr(training, "_train_epoch", dying)
    with pytest.raises(KilledError), resume.kept(tmp_path / "state"):
        train()
    with resume.kept(tmp_path / "state"):
        found, resumed = train()
    assert epochs == [0, 1, 2, 3, 3, 4, 5]
    assert found == facts
    assert all(torch.equal(value, weights[name]) for name, value in resumed.items()), "running averages too"


LAUNCHED = """
import os, sys
from pathlib import Path
import numpy as np, torch
from torch import distributed
from flexround.io import resume
from flexround.tasks.text import training as text_training
resume.WORTH_SECONDS = 0.0
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.Dropout(float(sys.argv[4])), torch.nn.Linear(4, 1))
arrays = {"x": np.random.default_rng(0).normal(size=(32, 5)).astype(np.float32)}
settings = text_training.TrainSettings(epochs=3, batch=8, lr=0.01)
calls = []
def loss(network, batch, _):
    calls.append(None)
    if len(calls) == int(sys.argv[1]):
        os._exit(9)
    return network(batch["x"]).square().mean()
with resume.kept(Path(sys.argv[2])):
    text_training.train(model, arrays, loss, settings)
    processes = distributed.get_world_size() if distributed.is_initialized() else 1
    if processes == 1 or distributed.get_rank() == 0:
        torch.save([processes, len(calls), model.state_dict()], sys.argv[3])
"""


def launched(directory, name, processes, died_at=0, dropout=0.5, state="state"):
    """Train in processes of their own and return their number, the steps of the first one, and its weights."""
    (directory / "launched.py").write_text(LAUNCHED)
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"] * (processes > 1)
    arguments = [str(died_at), directory / state, directory / name, str(dropout)]
    command = [sys.executable, *torchrun, directory / "launched.py", *arguments]
    subprocess.run(command, check=not died_at, capture_output=True)
    return None if died_at else torch.load(directory / name)


def test_two_processes_go_on_each_with_its_own_dropout(tmp_path):
    whole = launched(tmp_path, "whole", 2, state="other")
    launched(tmp_path, "died", 2, died_at=7)
    assert not (tmp_path / "died").exists()
    resumed = launched(tmp_path, "resumed", 2)
    assert (whole[:2], resumed[:2]) == ([2, 12], [2, 8])
    assert all(torch.equal(value, resumed[2][name]) for name, value in whole[2].items())


def test_two_processes_train_as_one(tmp_path):
    one, two = (launched(tmp_path, str(processes), processes, dropout=0.0) for processes in (1, 2))
    assert (one[:2], two[:2]) == ([1, 12], [2, 12])
    torch.testing.assert_close(one[2], two[2], rtol=1e-4, atol=1e-5)


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


def test_stages_keep_their_work_where_they_are_told_until_it_is_done(tmp_path, monkeypatch):
    work, seen = stage_calls.Work(stage_calls.Path(__file__).with_name("lm_scale.yaml"), tmp_path), []
    save = resume.save

    def watched(name, groups, **facts):
        save(name, groups, **facts)
        seen.append((name, sorted(path.parts[-3:-1] for path in tmp_path.glob("kept/*/*/*"))[0][0]))
        if len(seen) == 1:
            raise KilledError

    monkeypatch.setattr(resume, "save", watched)
    with pytest.raises(KilledError):
        work.weights("corpus", "gpt-neo-125m", state=stage_calls.Path("kept"))
    assert seen == [("training", "finetune")]
    work.weights("corpus", "gpt-neo-125m", state=stage_calls.Path("kept"), again=True)
    assert not list(tmp_path.glob("kept/*/*"))


def test_what_decides_the_bits_decides_where_work_is_kept(tmp_path, monkeypatch):
    code = tmp_path / "code"
    code.write_text("one")
    job = SimpleNamespace(code=code, model_dump_json=lambda: "{}")
    names = [resume.fingerprint(job, {"data": "1"}, torch.device("cpu"))]
    assert names == [resume.fingerprint(job, {"data": "1"}, torch.device("cpu"))]
    names.append(resume.fingerprint(job, {"data": "2"}, torch.device("cpu")))
    code.write_text("two")
    names.append(resume.fingerprint(job, {"data": "1"}, torch.device("cpu")))
    job.model_dump_json = lambda: "{1}"
    names.append(resume.fingerprint(job, {"data": "1"}, torch.device("cpu")))
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    names.append(resume.fingerprint(job, {"data": "1"}, torch.device("cpu")))
    torch.set_num_threads(threads)
    with monkeypatch.context() as patch:
        patch.setattr(torch, "__version__", "0.1")
        names.append(resume.fingerprint(job, {"data": "1"}, torch.device("cpu")))
    for gpu in ("A100", "H100"):
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda _, name=gpu: name)
        names.append(resume.fingerprint(job, {"data": "1"}, torch.device("cuda", 0)))
    assert len(set(names)) == 8


def test_a_part_is_replaced_whole_and_a_damaged_one_is_named(tmp_path):
    value = torch.arange(3)
    resume.save("part", {"group": {"x": value}})
    assert resume.load("part") is None, "no stage says where"
    with contextlib.suppress(KilledError), resume.kept(tmp_path / "state"):
        assert resume.load("part") is None
        for number in range(2):
            resume.save("part", {"group": {"x": value + number}}, number=number)
        raise KilledError
    file = tmp_path / "state/part/group.safetensors"
    assert [path.name for path in (tmp_path / "state").iterdir()] == ["part"]
    assert torch.equal(load_file(file)["x"], value + 1)
    with resume.kept(tmp_path / "state"):
        assert resume.load("part")[1] == {"number": 1}
        (tmp_path / "state/part").rename(tmp_path / "state/part.old")
        assert resume.load("part")[1] == {"number": 1}, "killed between two renames"
        data = (tmp_path / "state/part.old/group.safetensors").read_bytes()
        (tmp_path / "state/part.old/group.safetensors").write_bytes(data[:-1] + b"x")
        with pytest.raises(InputError, match=r"group\.safetensors"):
            resume.load("part")
        (tmp_path / "state/part.old/group.safetensors").write_bytes(data)
        manifest = tmp_path / "state/part.old/manifest.json"
        manifest.write_text(manifest.read_text().replace('"number": 1', '"number": 3'))
        with pytest.raises(InputError, match=r"manifest\.json: its content has the sha256") as caught:
            resume.load("part")
        shutil.rmtree(re.search(r"delete (\S+) and run the same", str(caught.value))[1])
        assert resume.load("part") is None, "the way out leads to a new start"


def test_work_that_was_killed_while_it_was_removed_is_not_gone_on_with(tmp_path, monkeypatch):
    def killed_midway(directory, **_):
        for path in directory.rglob("manifest.json"):
            path.unlink()
            raise KilledError

    state = tmp_path / "state"
    with contextlib.suppress(KilledError), monkeypatch.context() as patch, resume.kept(state):
        resume.save("part", {"group": {"x": torch.arange(3)}})
        patch.setattr(shutil, "rmtree", killed_midway)
    assert list(tmp_path.rglob("group.safetensors")), "the rest of the removed work is there"
    with resume.kept(state):
        assert resume.load("part") is None
    assert not list(tmp_path.iterdir())


def test_little_work_is_not_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(resume, "WORTH_SECONDS", 3600.0)
    monkeypatch.setattr(resume, "save", lambda *_, **__: pytest.fail("it was kept"))
    with resume.kept(tmp_path / "state"):
        bert_trainer()()
