"""Tensors of the tests."""

import torch


def randn(*shape, seed=0, dtype=torch.float32):
    """Return normal numbers that depend on nothing but the arguments."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)
