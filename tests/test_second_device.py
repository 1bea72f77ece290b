"""All stages on a device that is not the CPU: the same bits, and no iteration that would make a GPU wait.

Autograd counts the devices at its first backward pass, so each test works in a fork of a process that has made none.
"""

import contextlib
import dataclasses
import functools
import importlib
import multiprocessing
import shutil
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import own_networks
import pytest
import second_device
import stage_calls
import test_streamed_stages
import torch
from accelerate.state import AcceleratorState, PartialState
from second_device import counts
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import flexround
from flexround.io import artifacts, sources
from flexround.mini import models
from flexround.quant import native
from flexround.reconstruct import cache, phases
from flexround.reconstruct.reconstruction import Reconstruction
from flexround.tasks import text_training as training

FILES = ("finetune", "reconstruct", "evaluate")
SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(["lm_eval.evaluator", "peft", *(f"flexround.stages.{name}" for name in FILES)])


def apart(function, *arguments):
    """Return what a function returns in a process of its own."""
    with ProcessPoolExecutor(1, mp_context=SERVER) as pool:
        return pool.submit(function, *arguments).result(timeout=600)


def use(device):
    """Have this process compute on a device by PyTorch's kernels, which the CPU has, too."""
    native.fits = lambda *_: False
    generator, accelerator = Reconstruction.generator, training.Accelerator
    torch.set_num_threads(1)

    @contextlib.contextmanager
    def lease(*_):
        yield device

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

        def prepare_model(self, model, **options):  # it is there, and swapped parameters would lose their hooks
            return super().prepare_model(model, **options | {"device_placement": False})

    for file in FILES:
        importlib.import_module(f"flexround.stages.{file}").lease = lease
    Reconstruction.generator, training.Accelerator = drawn, Accelerator


def there(plan, row, rows, device, dtype, *most):
    """Have caches lie on the device."""
    return dataclasses.replace(plan(row, rows, device, dtype, *most), device=device)


def made(work, run, recipes):
    """Make all of some recipes; return the hash of each file of arrays, and how often the device computed."""
    with sdpa_kernel([SDPBackend.MATH]):
        for recipe in ("full-precision", *recipes):
            work.evaluated(*run, recipe)
    files = (work.root / "results").rglob("*.safetensors")
    return {str(path.relative_to(work.root)): artifacts.sha256(path) for path in files}, counts["operations"]


def chain(scale, run, recipes, root, on_device):
    use(second_device.install() if on_device else torch.device("cpu"))
    return made(stage_calls.Work(Path(__file__).with_name(f"{scale}.yaml"), root), run, recipes)


def streamed(source, recipes, root, on_device):
    use(second_device.install() if on_device else torch.device("cpu"))
    sources.verify = lambda *_: "0" * 64
    shutil.copytree(source, root, dirs_exist_ok=True)
    return made(test_streamed_stages.streamed(root), test_streamed_stages.NAMES, recipes)


def same(tmp_path, work, *arguments):
    """Assert that work on the device leaves the files that it leaves on the CPU, to the last bit."""
    roots = [tmp_path / "cpu", tmp_path / "device"]
    for root in roots:
        root.mkdir()
    (expected, none), (hashes, operations) = (apart(work, *arguments, root, root.name == "device") for root in roots)
    assert (none, operations > 1000) == (0, True)
    assert len(hashes) > 3
    assert hashes == expected


@pytest.mark.parametrize("family", stage_calls.CHAINS)
def test_a_chain_of_jobs_has_the_bits_of_the_cpu(tmp_path, family):
    same(tmp_path, chain, *stage_calls.CHAINS[family])


def test_a_streamed_network_has_the_bits_of_the_cpu(tmp_path):
    (source := tmp_path / "source").mkdir()
    test_streamed_stages.write_source(source)
    same(tmp_path, streamed, source, ("q-flexround-w8a8", "b-adaround-w8a8"))


ROUNDINGS = ("rtn", "adaquant", "adaround", "flexround", "adaquant-flexround", "gptq", "signround", "lrq")


ITERATIONS = 3


def crossing():
    """Return a list that gets what crosses in each block's iterations from now on."""
    minimise, found = phases.optimise, []

    def watched(block, batches, groups, iterations, *rest):
        before = counts.copy()
        losses = minimise(block, batches, groups, iterations, *rest)
        found.append({"iterations": iterations} | {name: counts[name] - before[name] for name in second_device.CROSSES})
        return losses

    phases.optimise = watched
    return found


def codes(on_device):
    """Return what every rounding finds for a ResNet-18, and some for a small LLaMA, by their networks and recipes.

    Activations lie on the device for every other one. What crosses in the iterations of its blocks is returned, too.
    """
    device = second_device.install() if on_device else torch.device("cpu")
    images = torch.randn(16, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    runs = [
        (models.resnet18().eval(), images, recipe) for recipe in ("q-flexround-w4a4", *(f"b-{r}-w4" for r in ROUNDINGS))
    ]
    texts = ("q-flexround-w8a8", "q-adaround-w8a8", "b-flexround-w4", "b-lrq-w4")
    runs += [(own_networks.llama(), own_networks.words(), recipe) for recipe in texts]
    use(device)
    plan, crossed, found = cache.plan, crossing(), {}
    with sdpa_kernel([SDPBackend.MATH]):
        for index, (model, samples, recipe) in enumerate(runs):
            cache.plan = functools.partial(there, plan) if index % 2 else plan
            few = {"iters": ITERATIONS, "a_iters": ITERATIONS, "batch": 4, "progress": False}
            quantized = flexround.quantize(model, samples, recipe, device=device, **few)
            state = quantized.model.cpu().state_dict()
            found[type(model).__name__, recipe] = {name: value.numpy() for name, value in state.items()}, crossed[:]
            crossed.clear()
    return found


def test_each_rounding_has_the_cpus_bits_and_no_iteration_waits():
    """Nothing but a batch is copied, and the rows of many batches at once; losses and moves are read at the end."""
    expected, found = apart(codes, False), apart(codes, True)
    assert len(found) == len(ROUNDINGS) + 5
    for index, (run, (state, blocks)) in enumerate(found.items()):
        for name, value in state.items():
            assert np.array_equal(value, expected[run][0][name]), (run, name)
        copied = 0 if index % 2 else ITERATIONS * (3 if run[1].startswith("q") else 2)
        wanted = {"iterations": ITERATIONS, "reads": 3, "to host": 1, "to device": 1 + copied}
        assert blocks == [wanted] * len(blocks), run
        assert bool(blocks) == (run[1] not in ("b-rtn-w4", "b-gptq-w4"))


def many_iterations():
    """Return what crosses in each block's iterations, of which there are more than one look at the loss needs."""
    device = second_device.install()
    use(device)
    found, model = crossing(), own_networks.made(functools.partial(own_networks.Residual, 8))
    few = {"iters": 120, "batch": 4, "progress": False}
    model = nn.Sequential(nn.Conv2d(3, 8, 3), model).eval()
    flexround.quantize(model, own_networks.pictures(), "q-flexround-w4a4", device=device, **few)
    x = torch.ones(2, 2)
    with pytest.raises(RuntimeError, match=r"a CPU tensor of shape \(2, 2\)"):
        x.to(device) + x
    return found


def test_the_loss_is_read_at_iteration_100_and_the_last():
    blocks = apart(many_iterations)
    wanted = {"iterations": 120, "reads": 5, "to host": 1, "to device": 1 + 3 * 120}
    assert len(blocks) >= 2
    assert blocks == [wanted] * len(blocks)
