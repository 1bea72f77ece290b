"""The engine on a device that is not the CPU: the same bits, and no iteration that would make a GPU wait."""

import dataclasses
import functools
import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import pytest
import second_device
import torch
from own_networks import Pictures, llama, made, pictures, words
from second_device import counts
from torch.nn.attention import SDPBackend, sdpa_kernel

import flexround
from flexround.quant import native
from flexround.reconstruct import cache, phases
from flexround.reconstruct.reconstruction import Reconstruction

ROUNDINGS = ("rtn", "adaquant", "adaround", "flexround", "adaquant-flexround", "gptq", "signround", "lrq")
RUNS = [(functools.partial(made, Pictures), pictures, f"b-{rounding}-w4") for rounding in ROUNDINGS]
RUNS += [(functools.partial(made, Pictures), pictures, "q-flexround-w4a4")]
RUNS += [(llama, words, recipe) for recipe in ("q-flexround-w8a8", "b-lrq-w4")]
ITERATIONS = 3
FEW = {"iters": ITERATIONS, "a_iters": ITERATIONS, "batch": 4, "progress": False}


def drawn(generator, job, purpose, name, device="cpu"):
    """Return a generator that draws the CPU's numbers on every device."""
    found = generator(job, purpose, name)
    if torch.device(device).type == "cpu":
        return found
    there = second_device.Generator()
    there.set_state(found.get_state())
    return there


def there(plan, row, rows, device, dtype, *most):
    """Have caches lie on the device."""
    return dataclasses.replace(plan(row, rows, device, dtype, *most), device=device)


def codes(on_device):
    """Return, for each run, the network that is found and what crosses in the iterations of its blocks.

    Activations lie on the device for every other one.
    """
    device = second_device.install() if on_device else torch.device("cpu")
    plan, minimise, generator, found = cache.plan, phases.optimise, Reconstruction.generator, []

    def watched(block, batches, groups, iterations, *rest):
        before = counts.copy()
        losses = minimise(block, batches, groups, iterations, *rest)
        crossed = {name: counts[name] - before[name] for name in second_device.CROSSES}
        blocks.append({"iterations": iterations} | crossed)
        return losses

    with pytest.MonkeyPatch.context() as patch, sdpa_kernel([SDPBackend.MATH]):
        patch.setattr(native, "fits", lambda *_: False)  # PyTorch's kernels, which the CPU has, too
        patch.setattr(Reconstruction, "generator", functools.partialmethod(lambda *a, **k: drawn(generator, *a, **k)))
        patch.setattr(phases, "optimise", watched)
        for index, (network, samples, recipe) in enumerate(RUNS):
            patch.setattr(cache, "plan", functools.partial(there, plan) if index % 2 else plan)
            blocks = []
            model = flexround.quantize(network(), samples()[:16], recipe, device=device, **FEW).model.cpu()
            found.append(({name: value.numpy() for name, value in model.state_dict().items()}, blocks))
    return found


def test_every_rounding_has_the_bits_of_the_cpu_without_waits():
    """Nothing but a batch is copied, and the rows of many batches at once; losses are read at the end."""
    # Autograd counts the devices at its first backward pass, so the device is in a process that has made none.
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        found = pool.submit(codes, True).result(timeout=600)
    for index, ((state, blocks), (expected, _)) in enumerate(zip(found, codes(False), strict=True)):
        recipe = RUNS[index][2]
        for name, value in state.items():
            assert np.array_equal(value, expected[name]), (recipe, name)
        copied = 0 if index % 2 else ITERATIONS * (3 if recipe.startswith("q") else 2)
        wanted = {"iterations": ITERATIONS, "reads": 2, "to host": 1, "to device": 1 + copied}
        assert blocks == [wanted] * len(blocks), recipe
        assert bool(blocks) == (recipe not in ("b-rtn-w4", "b-gptq-w4"))
