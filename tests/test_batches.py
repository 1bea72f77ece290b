"""Batches: rows and lengths ask the device for nothing, and are those that plain indexing gives.

The device is ``meta``, where asking for a value is an error.
"""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from flexround.reconstruct.cache import Batches, Store, gathered

CPU, META = torch.device("cpu"), torch.device("meta")


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
