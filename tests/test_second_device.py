"""All stages on a device that is not the CPU: the same bits, and no iteration that would make a GPU wait."""

import contextlib
import functools
import importlib
from pathlib import Path

import forks
import pytest
import second_device
import stage_calls
import torch
from accelerate.state import AcceleratorState, PartialState
from own_networks import Pictures, made, pictures
from second_device import counts
from torch.nn.attention import SDPBackend, sdpa_kernel

import flexround
from flexround.io import artifacts
from flexround.reconstruct.reconstruction import Reconstruction
from flexround.tasks.text import training

STAGES = ("finetune", "gate", "reconstruct", "select", "evaluate")


def use(device):
    """Have this process, a fork, compute on a device by the kernels that the CPU has, too."""
    generator, accelerator = Reconstruction.generator, training.Accelerator

    @contextlib.contextmanager
    def lease(asked=0):
        yield device

    def dropout(x, p=0.5, training=True, inplace=False):  # as on the CPU: a device's own divides in another place
        return x * torch.empty_like(x).bernoulli_(1 - p).div_(1 - p) if training and p else x

    def drawn(job, purpose, name, device="cpu"):
        found = generator(job, purpose, name)
        if torch.device(device).type == "cpu":
            return found
        there = second_device.Generator()
        there.set_state(found.get_state())
        return there

    class Accelerator(accelerator):
        def __init__(self, **options):
            AcceleratorState._reset_state(reset_partial_state=True)
            super().__init__(**options | {"cpu": True})
            AcceleratorState._shared_state["device"] = PartialState._shared_state["device"] = device

    for stage in STAGES:
        importlib.import_module(f"flexround.stages.{stage}").lease = lease
    torch.nn.functional.dropout = dropout
    Reconstruction.generator, training.Accelerator = drawn, Accelerator


def chain(scale, task, checkpoint, recipes, root, on_device):
    """Make everything of some runs on the CPU or on the device; return the hash of each file of arrays."""
    use(second_device.install() if on_device else torch.device("cpu"))
    torch.set_num_threads(1)
    work = stage_calls.Work(Path(__file__).with_name(f"{scale}.yaml"), root)
    with sdpa_kernel([SDPBackend.MATH]):
        for recipe in ("full-precision", *recipes):
            work.evaluated(task, checkpoint, recipe)
    files = (root / "results").rglob("*.safetensors")
    return {str(path.relative_to(root)): artifacts.sha256(path) for path in files}, counts["operations"]


@pytest.mark.parametrize(
    ("scale", "task", "checkpoint", "recipes"),
    [
        ("smoke", "imagenet", "mobilenetv2-brecq", ("q-flexround-w4a4", "b-adaround-w4a4")),
        ("text_scale", "glue-rte", "bert-base", ("q-flexround-w8a8",)),
        ("commonsense_scale", "commonsense", "llama-7b", ("q-adaround-w8a8",)),
    ],
)
def test_a_chain_of_jobs_has_the_bits_of_the_cpu(tmp_path, scale, task, checkpoint, recipes):
    found = []
    for where in (False, True):
        root = tmp_path / str(where)
        root.mkdir()
        found += forks.results(functools.partial(chain, scale, task, checkpoint, recipes, root, where), seconds=600)
    (expected, none), (hashes, operations) = found
    assert (none, operations > 1000) == (0, True)
    assert len(hashes) > 5
    assert hashes == expected


def counted():
    """Return what crosses in a reconstruction of 20 and of 60 iterations a block, and what is refused."""
    device = second_device.install()
    use(device)
    found = []
    for iterations in (20, 60):
        counts.clear()
        few = {"iters": iterations, "batch": 4, "progress": False}
        quantized = flexround.quantize(made(Pictures), pictures(), "q-flexround-w4a4", device=device, **few)
        found.append(dict(counts) | {"blocks": len(quantized.report)})
    x = torch.ones(2, 2)
    with pytest.raises(RuntimeError, match=r"a CPU tensor of shape \(2, 2\)"):
        x.to(device) + x
    return found


def test_no_iteration_reads_a_number_and_batches_alone_are_copied():
    ((few, many),) = forks.results(counted)
    iterations = 40
    assert 0 < many["reads"] < few["reads"] + iterations, "a search of steps may end a candidate later"
    assert few["to host"] == many["to host"]
    copied = many["to device"] - few["to device"]
    assert copied == 3 * many["blocks"] * iterations, "input, full-precision input and target, from the host's caches"
