"""Padding in reconstruction: batches and samples are cut where only padding is left, and nothing else changes."""

import pytest
import torch
from test_text_blocks import batch, cut, make

from flexround.models.blocks import run
from flexround.reconstruct.cache import Batches
from flexround.reconstruct.optimise import ReconstructionError
from flexround.tasks.protocol import Inputs

LENGTHS = torch.tensor([12, 5, 3, 7, 1, 9])
MASK = torch.arange(12) < LENGTHS[:, None]
ROWS = torch.arange(6.0)[:, None, None] + torch.arange(12)[:, None] / 100 + torch.zeros(6, 12, 4)


def batches(trim, keep=1.0, mask=MASK):
    rows, masks = (torch.Generator().manual_seed(seed) for seed in (0, 1))
    return Batches(ROWS, -ROWS, ROWS + 10, mask, trim, 2, keep, True, rows, masks)


def test_a_batch_ends_with_the_last_word_of_its_longest_row():
    trimmed, whole = batches(trim=True), batches(trim=False)
    found = set()
    for _ in range(20):
        (x, target, mask), (full_x, full_target, full_mask) = trimmed.draw(), whole.draw()
        length = int(full_mask.sum(1).max())
        found.add(length)
        assert x.shape == target.shape == (2, length, 4)
        assert torch.equal(x, full_x[:, :length])
        assert torch.equal(target, full_target[:, :length])
        assert torch.equal(mask, full_mask[:, :length])
        error = ReconstructionError(2.0, masked=True)
        torch.testing.assert_close(error(x, target, mask), error(full_x, full_target, full_mask))
    assert len(found) > 2


@pytest.mark.parametrize("kind", ["bert", "gpt_neo"])
def test_cut_samples_give_the_same_hidden_states(kind):
    blocks = cut(make(kind))
    x, mask = batch()
    short = Inputs(x[1:], mask[1:]).trimmed()
    length = short.x.shape[-1]
    assert length == int(mask[1:].sum(1).max()) < x.shape[-1]
    assert short.mask.shape == (len(x) - 1, length)
    whole = run(blocks, x[1:], mask[1:])[:, :length]
    torch.testing.assert_close(run(blocks, *short)[short.mask], whole[short.mask])
