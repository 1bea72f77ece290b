"""Masks of attention, which several families of language models share."""

import torch
from torch import Tensor, nn


def bias(allowed: Tensor, dtype: torch.dtype) -> Tensor:
    """Return what to add to attention logits, of any shape: 0 where they are ``allowed``, else the least number."""
    return torch.zeros_like(allowed, dtype=dtype).masked_fill(~allowed, torch.finfo(dtype).min)


def causal_mask(attention: str, x: Tensor, mask: Tensor | None) -> Tensor | None:
    """Return what a layer needs to attend to earlier real tokens only, as the whole model would give it.

    Args:
        attention: the model's implementation. All but ``eager`` are causal without padding, and faster without a mask.
        x: hidden states (N, T, H).
        mask: bool (N, T), True for real tokens; None without padding.

    Returns:
        None, or (1 or N, 1, T, T): for ``eager`` added to the logits, of the type of ``x``; else bool, True to look.
    """
    if mask is None and attention != "eager":
        return None
    length = x.shape[1]
    allowed = torch.ones(1, 1, length, length, dtype=torch.bool, device=x.device).tril()
    if mask is not None:
        allowed = allowed & mask[:, None, None, :]
    return bias(allowed, x.dtype) if attention == "eager" else allowed


def call_causal(attention: str, layer: nn.Module, x: Tensor, mask: Tensor | None) -> Tensor:
    """Run a layer on hidden states (N, T, H), with the mask that its attention needs (`causal_mask`)."""
    return layer(x, attention_mask=causal_mask(attention, x, mask))
