"""Convert users' calibration samples to the input of a model's first block."""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from flexround.errors import InputError
from flexround.tasks.protocol import Inputs

IDS, TYPES, MASK = "input_ids", "token_type_ids", "attention_mask"
IMAGES = "pixel_values"
LABELS = "labels"


def collect(samples: Any) -> Inputs:
    """Return all samples as one tensor on the CPU.

    Args:
        samples: images or other numbers, float (N, ...); token ids, int64 (N, T); a mapping with Hugging Face's names
            (``input_ids`` with ``attention_mask`` and ``token_type_ids``, or ``pixel_values``); or an iterable of such
            batches, such as a DataLoader. In a tuple or list the first item counts; the others are labels.

    Returns:
        float32 (N, ...), or int64 (N, 2, T) of token ids and types with the mask of the real tokens.

    Raises:
        InputError: batches don't match each other, values are not finite, or padding comes before a real token.
    """
    batches = [samples] if isinstance(samples, Tensor | Mapping) else list(samples)
    batches = [batch[0] if isinstance(batch, Sequence) else batch for batch in batches]  # the others are labels
    parts = [_inputs(batch, f"samples: batch {number}") for number, batch in enumerate(batches)]
    shapes = list(dict.fromkeys(tuple(part.x.shape[1:]) for part in parts))
    if len(shapes) > 1:
        raise InputError(
            f"samples: rows of shapes {shapes[0]} and {shapes[1]}; cut or pad them to one shape; labels belong into "
            "tuples with their batches: [(X, y)]"
        )
    x = torch.cat([part.x for part in parts])
    if not torch.isfinite(x).all():
        raise InputError(f"samples: {int((~torch.isfinite(x)).sum())} of {x.numel()} values are NaN or Inf")
    masks = [torch.ones(part.x.shape[::2]) if part.mask is None else part.mask for part in parts]
    mask = torch.cat(masks).bool() if any(part.mask is not None for part in parts) else None
    return Inputs(x, None if mask is None or mask.all() else mask)


def _inputs(batch: Any, where: str) -> Inputs:
    """Return one batch."""
    if not isinstance(batch, Mapping):
        return Inputs(_tokens(batch, where) if not batch.is_floating_point() else batch.detach().cpu().float())
    batch = {name: value for name, value in batch.items() if value is not None}
    read = {IMAGES} if IMAGES in batch else {IDS, TYPES, MASK}
    if left := [str(name) for name in batch if name not in read | {LABELS}]:
        warnings.warn(f"samples: the model is called without {', '.join(left)}", stacklevel=4)
    if IMAGES in batch:
        return _inputs(batch[IMAGES], where)
    try:
        ids = torch.as_tensor(batch[IDS])
    except ValueError as error:
        raise InputError(f"{where}: no tensor of tokens ({error}); pad rows to one length: padding=True") from error
    tokens = _tokens(ids, where, torch.as_tensor(batch[TYPES]) if TYPES in batch else None)
    return Inputs(tokens, _real(torch.as_tensor(batch[MASK]).cpu(), where) if MASK in batch else None)


def _real(mask: Tensor, where: str) -> Tensor:
    """Return the real tokens, bool (N, T), from a mask of 1 and 0, or from a mask added to logits, 0 and less.

    Raises:
        InputError: a row has no real token, or padding before a real token.
    """
    real = mask == 0 if mask.is_floating_point() and (mask < 0).any() else mask.bool()
    if not real.any(-1).all():
        raise InputError(f"{where}: {MASK} leaves a row without a token; 1 stands for a real token, 0 for padding")
    if (real[:, 1:] & ~real[:, :-1]).any():
        raise InputError(f"{where}: padding comes before a real token; pad at the end: positions count from there")
    return real


def _tokens(ids: Tensor, where: str, types: Tensor | None = None) -> Tensor:
    """Return token ids and types, integers (N, T) each, as int64 (N, 2, T)."""
    if ids.ndim != 2:
        raise InputError(
            f"{where}: {ids.dtype} of shape {tuple(ids.shape)}; token ids are integers (N, T), images: .float()"
        )
    return torch.stack([ids, torch.zeros_like(ids) if types is None else types], 1).long().detach().cpu()
