"""Masks of attention, which several families of language models share."""

import torch
from torch import Tensor, nn


def padding_bias(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Return what to add to attention logits: (N, 1, 1, T), 0 for real tokens and the least number for padding.

    ``mask`` is bool (N, T), True for real tokens.
    """
    bias = torch.zeros(mask.shape, dtype=dtype, device=mask.device)
    return bias.masked_fill(~mask, torch.finfo(dtype).min)[:, None, None, :]


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
    if attention != "eager":
        return allowed
    return torch.zeros_like(allowed, dtype=x.dtype).masked_fill(~allowed, torch.finfo(x.dtype).min)


def call_causal(attention: str, layer: nn.Module, x: Tensor, mask: Tensor | None) -> Tensor:
    """Run a layer on hidden states (N, T, H), with the mask that its attention needs (`causal_mask`)."""
    return layer(x, attention_mask=causal_mask(attention, x, mask))
