"""Nothing in an iteration waits for the device, and only batches of host caches are copied to it.

No GPU is needed: the block lies on ``meta``, where asking for a value is an error, and every copy is seen.
"""

import contextlib

import pytest
import torch
import toy
from torch.utils._python_dispatch import TorchDispatchMode

from flexround.models.surgery import attach
from flexround.reconstruct import optimise, phases
from flexround.reconstruct.cache import Batches, Store, gathered

CPU, META = torch.device("cpu"), torch.device("meta")
ITERATIONS = 5
pytestmark = pytest.mark.last


class Generator(torch.Generator):
    """A generator of a device that has none."""

    device = META


class Copies(TorchDispatchMode):
    """Counts copies from one device to another."""

    count = 0

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        made = function(*arguments, **(keywords or {}))
        if function in (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default):
            source = arguments[1] if function is torch.ops.aten.copy_.default else arguments[0]
            self.count += made.device != source.device
        return made


class Stop(Exception):
    pass


def stop(*_):
    raise Stop


def copies(monkeypatch, caches, rounding="flexround", mask=None):
    """Learn a block on ``meta`` from caches on a device; return how many tensors were copied between devices."""
    made = toy.job(toy.recipe("Q", rounding, 3, 4), reg_warmup=0.0, batch=16)
    phase = phases.WeightPhase(made, toy.samples(), Store(CPU))
    carry = phase.start()
    phase.full_precision(0, carry)
    with monkeypatch.context() as patch:
        patch.setattr(phases, "optimise", stop)
        with pytest.raises(Stop):
            phase.learn(0, carry)
    block = made.blocks[0]
    block.module.to(META)
    for quantizer in attach.quantizers(block):
        quantizer.generator = Generator()
    x, target = toy.samples().to(caches), torch.zeros(64, 8, 8, 8).to(caches)
    batches = Batches(x, x, target, mask, True, 16, 0.5, True, torch.Generator(), Generator())
    learned = [parameter for parameter in block.module.parameters() if parameter.requires_grad]
    groups = [optimise.ParameterGroup(learned, 1e-3, "cosine")]
    regularizers = [attach.attached_rounding(layer).regularizer for layer in attach.weight_layers(block)]
    adam = torch.optim.Adam
    monkeypatch.setattr(torch.optim, "Adam", lambda params, fused: adam(params))
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: contextlib.nullcontext())
    monkeypatch.setattr(optimise, "_check_finite", stop)  # the look at the losses, once in many iterations
    penalty, error = optimise.Penalty(regularizers, 0.01, 0.0, 20, 2), optimise.ReconstructionError(2.0)
    with Copies() as seen, pytest.raises(Stop):
        optimise.optimise(block, batches, groups, ITERATIONS, error, "stem", penalty)
    return seen.count


@pytest.mark.parametrize("rounding", ["flexround", "adaround", "adaquant", "adaquant-flexround", "lrq"])
def test_an_iteration_on_caches_of_the_device_copies_nothing(monkeypatch, rounding):
    assert copies(monkeypatch, META, rounding) == 1, "row numbers of many batches, once"


def test_an_iteration_on_caches_of_the_host_copies_its_rows(monkeypatch):
    assert copies(monkeypatch, CPU) == 1 + 3 * ITERATIONS, "both inputs and the target"


def test_masks_and_lengths_ask_the_device_for_nothing():
    lengths = torch.tensor([4, 2, 9, 7])
    mask = torch.arange(12) < lengths[:, None]
    x = torch.zeros(4, 12, 3, device=META)
    batches = Batches(x, x, x, mask, True, 2, 0.5, True, torch.Generator().manual_seed(0), Generator())
    with Copies() as seen:
        drawn = [batches.draw() for _ in range(300)]
    assert seen.count == 2, "row numbers of 256 batches at a time"
    assert {tuple(mask.shape) for _, _, mask in drawn} == {(2, length) for length in lengths.tolist() if length > 2} | {
        (2, 2)
    }


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_rows_of_the_host_are_gathered_as_indexing_does(kind):
    index = torch.tensor([3, 0, 3])
    images = Store(CPU, kind).copy(torch.randn(5, 3, 4, 2))
    tokens = Store(CPU, kind).copy(torch.randn(5, 7, 3))
    for x, length, expected in (
        (images, None, images[index]),
        (tokens, None, tokens[index]),
        (tokens, 4, tokens[index, :4]),
    ):
        found = gathered(x, index, length, CPU)
        assert torch.equal(found, expected)
        assert found.stride() == expected.stride()


@pytest.mark.parametrize("replacement", [True, False])
def test_rows_drawn_ahead_are_those_drawn_one_by_one(replacement):
    x = torch.arange(10.0)[:, None]
    batches = Batches(x, x, x, None, False, 4, 1.0, replacement, torch.Generator().manual_seed(3), torch.Generator())
    rows = torch.Generator().manual_seed(3)
    for _ in range(600):
        expected = torch.randint(10, (4,), generator=rows) if replacement else torch.randperm(10, generator=rows)[:4]
        assert torch.equal(batches.draw()[0][:, 0], expected.float())
