"""Batches are those that plain indexing gives."""

import pytest
import torch

from flexround.reconstruct.cache import Batches, Store, gathered

CPU = torch.device("cpu")


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
