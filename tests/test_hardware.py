"""Memory that is too small: one message, and what is finished stays."""

import errno
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from stage_calls import Work

from flexround.errors import InputError
from flexround.io import artifacts, resume
from flexround.machine import hardware
from flexround.tasks import image_training as training
from flexround.tasks import images as image_task

TESTS = Path(__file__).parent
IMAGES = "imagenet", "mobilenetv2-brecq"
PETABYTE = 2**50  # no address space has room for it


def refuse(error):
    def fail():
        raise error

    return fail


HOST = r"the host's memory is too small: .*{}.*; try a smaller batch, fewer jobs at once \(--cores.*is kept: run the"
GPU = r"the GPU's memory is too small: CUDA.*{}.*; try a smaller batch, fewer jobs at once \(jobs_per_gpu\)"


@pytest.mark.parametrize(
    ("fail", "message", "told"),
    [
        (lambda: torch.empty(PETABYTE, dtype=torch.uint8), HOST, str(PETABYTE)),
        (lambda: np.empty(PETABYTE, np.uint8), HOST, r"1\.00 PiB"),
        (refuse(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has")), GPU, "2.50 GiB"),
        (refuse(RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`")), GPU, "CUBLAS"),
    ],
)
def test_too_little_memory_is_one_message_with_what_lowers_it(fail, message, told):
    with (
        pytest.raises(InputError, match=f"^a job: {message.format(told)}"),
        hardware.enough("a job", "a smaller batch"),
    ):
        fail()


def test_other_errors_stay_what_they_are():
    error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with pytest.raises(OSError, match="No space") as found, hardware.enough("a job"):
        raise error
    assert found.value is error


def test_what_is_free_is_the_least_that_any_limit_leaves(tmp_path, monkeypatch):
    (tmp_path / "job").mkdir()
    group = Path("/proc/self/cgroup").read_text().strip().rpartition("::/")[2]
    inner = tmp_path / group
    inner.mkdir(parents=True, exist_ok=True)
    (inner / "memory.max").write_text("max\n")
    (tmp_path / "memory.max").write_text("5000000\n")
    (tmp_path / "memory.current").write_text("2000000\n")
    without = hardware.free_bytes()
    monkeypatch.setattr(hardware, "GROUPS", tmp_path)
    assert hardware.free_bytes() == 3000000 < without


def test_stages_without_memory_name_settings_and_resume(tmp_path, monkeypatch):
    scale = tmp_path / "smoke.yaml"
    text = (TESTS / "smoke.yaml").read_text().replace("epochs: 1,", "epochs: 3, shift: 1,")
    scale.write_text(text.replace("train: 640, val: 200", "train: 128, val: 64"))
    (tmp_path / "whole").mkdir()
    expected = artifacts.read_manifest(Work(scale, tmp_path / "whole").weights(*IMAGES))
    work, kept = Work(scale, tmp_path), Path("kept")
    monkeypatch.setattr(resume, "WORTH_SECONDS", 0.0)
    epochs, train_epoch = [], training._train_epoch

    def short(*arguments):
        epochs.append(arguments[-1])
        if epochs == [0, 1]:
            torch.empty(PETABYTE)
        return train_epoch(*arguments)

    monkeypatch.setattr(training, "_train_epoch", short)
    message = r"smoke/imagenet/mobilenetv2-brecq: the host's .*train rules.*, a smaller batch"
    with pytest.raises(InputError, match=message):
        work.weights(*IMAGES, state=kept)
    assert list(tmp_path.glob("kept/finetune/*/training.safetensors"))
    found = artifacts.read_manifest(work.weights(*IMAGES, state=kept))
    assert epochs == [0, 1, 1, 2]
    assert (found["files"], found["train"]) == (expected["files"], expected["train"]), "the same bits, averages too"
    assert not list(tmp_path.glob("kept/*/*")), "it is kept until the result is there"
    monkeypatch.setattr(image_task, "hits_at", lambda *_: torch.empty(PETABYTE))
    message = r"full-precision.*: the host's memory is too small: .* evaluated: bfloat16 \(now float32\)"
    with pytest.raises(InputError, match=message):
        work.evaluated(*IMAGES)
