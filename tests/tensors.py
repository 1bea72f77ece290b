"""Tensors of the tests."""

import torch


def randn(*shape, seed=0, dtype=torch.float32):
    """Return normal numbers that depend on nothing but the arguments."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def images(n, size):
    return randn(n, 3, size, size, seed=1)


def ranges(conv, first):
    """Return the largest |w| per channel that ``conv`` shares with its neighbour, spelled out."""
    by_channel = conv.weight if first or conv.groups > 1 else conv.weight.transpose(0, 1)
    return torch.stack([weights.abs().max() for weights in by_channel])
