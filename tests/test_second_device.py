"""All stages on a device that is not the CPU: the same bits, and nothing that would make a GPU wait in each iteration."""

import contextlib
import copy
import importlib
from pathlib import Path

import pytest
import second_device
import stage_calls
import torch
from accelerate.state import AcceleratorState, PartialState
from second_device import OnDevice, counts
from torch.nn.attention import SDPBackend, sdpa_kernel

import flexround
from flexround.io import artifacts
from flexround.reconstruct.reconstruction import Reconstruction
from flexround.tasks.text import training

pytestmark = pytest.mark.last  # a device can't be taken back
STAGES = ("finetune", "gate", "reconstruct", "select", "evaluate")
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def device():
    return second_device.install()


@pytest.fixture
def use(monkeypatch):
    """Return a function that makes all stages run on a device, by the kernels that the CPU has, too."""
    generator, accelerator = Reconstruction.generator, training.Accelerator

    def dropout(x, p=0.5, training=True, inplace=False):  # the CPU's; a device's divides elsewhere
        return x * torch.empty_like(x).bernoulli_(1 - p).div_(1 - p) if training and p else x

    def own(self, purpose, name, device="cpu"):
        made = generator(self, purpose, name)
        return made if torch.device(device).type == "cpu" else second_device.of_state(made.get_state())

    def use_device(device):
        @contextlib.contextmanager
        def lease(asked=0):
            yield device

        class Accelerator(accelerator):
            def __init__(self, **options):
                AcceleratorState._reset_state(reset_partial_state=True)
                super().__init__(**options | {"cpu": True})
                AcceleratorState._shared_state["device"] = PartialState._shared_state["device"] = device

        for stage in STAGES:
            monkeypatch.setattr(importlib.import_module(f"flexround.stages.{stage}"), "lease", lease, raising=False)
        monkeypatch.setattr(training, "Accelerator", Accelerator)
        counts.clear()

    monkeypatch.setattr(torch.nn.functional, "dropout", dropout)
    monkeypatch.setattr(Reconstruction, "generator", own)
    with sdpa_kernel([SDPBackend.MATH]):
        yield use_device
    AcceleratorState._reset_state(reset_partial_state=True)


def hashes(root):
    return {
        str(path.relative_to(root)): artifacts.sha256(path) for path in (root / "results").rglob("*.safetensors")
    }


@pytest.mark.parametrize(
    ("scale", "task", "checkpoint", "recipes"),
    [
        ("smoke", "imagenet", "mobilenetv2-brecq", ("q-flexround-w4a4", "b-adaround-w4a4")),
        ("text_scale", "glue-rte", "bert-base", ("q-flexround-w8a8",)),
        ("webnlg_scale", "webnlg", "gpt2-medium", ("q-flexround-w8a8",)),
        ("commonsense_scale", "commonsense", "llama-7b", ("q-adaround-w8a8",)),
    ],
)
def test_a_chain_of_jobs_has_the_bits_of_the_cpu(tmp_path, device, use, scale, task, checkpoint, recipes):
    made = []
    for where in (CPU, device):
        root = tmp_path / where.type
        root.mkdir()
        use(where)
        work = stage_calls.Work(Path(__file__).with_name(f"{scale}.yaml"), root)
        for recipe in ("full-precision", *recipes):
            work.evaluated(task, checkpoint, recipe)
        made.append(hashes(root))
    assert counts["operations"]
    assert made[0] == made[1]


def test_no_iteration_waits_for_the_device(device, use, network, images):
    use(device)
    found = []
    for iterations in (20, 60):
        counts.clear()
        flexround.quantize(copy.deepcopy(network), images, "q-flexround-w4a4", device=device, iters=iterations, batch=8)
        found.append(dict(counts))
    assert found[1]["reads"] - found[0]["reads"] <= 2, "the loss is looked at every 100 iterations"


def test_it_refuses_to_mix_and_counts(device):
    x = torch.randn(4, 4)
    there = x.to(device)
    assert isinstance(there, OnDevice)
    with pytest.raises(RuntimeError, match="tensors of the CPU"):
        there + x
    assert torch.equal((there + 1.0).cpu(), x + 1.0)
    counts.clear()
    assert float(there.sum()) == float(x.sum())
    assert counts["reads"] == 1
