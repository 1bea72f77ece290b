"""Calibration samples as users have them, as the first block of a model takes them."""

import warnings
from collections.abc import Iterable, Mapping, Sequence
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
        samples: images or other numbers, float (N, ...); token ids, int64 (N, T); a mapping of Hugging Face's names
            (``input_ids`` with ``attention_mask`` and ``token_type_ids``, or ``pixel_values``); or an iterable of such
            batches, as a DataLoader is. Of a batch that is a tuple or list the first item counts, the rest are labels.

    Returns:
        float32 (N, ...), or int64 (N, 2, T) of token ids and types with the mask of the real tokens.

    Raises:
        InputError: no samples, of another kind, or batches that don't fit together.
    """
    if not isinstance(samples, Iterable) or isinstance(samples, str):
        raise InputError(
            f"samples: {type(samples).__name__} is no tensor, list of batches or DataLoader; its rows are needed"
        )
    dimensions = [getattr(each, "ndim", 0) for each in samples] if isinstance(samples, Sequence) else []
    if dimensions[1:] == [1] != dimensions[:1]:
        raise InputError("samples: (X, y) is read as two batches; give X alone, or a list of such pairs: [(X, y)]")
    batches = [samples] if isinstance(samples, Tensor | Mapping) else list(samples)
    if not batches:
        raise InputError("samples: there are none; give a tensor (N, ...), a list of batches or a DataLoader")
    batches = [batch[0] if isinstance(batch, Sequence) and batch else batch for batch in batches]  # [1:] are labels
    parts = [_inputs(batch, f"samples: batch {number}") for number, batch in enumerate(batches)]
    shapes = list(dict.fromkeys(tuple(part.x.shape[1:]) for part in parts))
    if len(shapes) > 1:
        raise InputError(f"samples: rows of shapes {shapes[0]} and {shapes[1]}; cut or pad them to one shape")
    masked = [part.mask is not None for part in parts]
    if any(masked) and not all(masked):
        raise InputError(f"samples: only some batches have {MASK}; give it with all or with none")
    x = torch.cat([part.x for part in parts])
    if not len(x):
        raise InputError("samples: the batches are empty")
    if not torch.isfinite(x).all():
        raise InputError(f"samples: {int((~torch.isfinite(x)).sum())} of {x.numel()} values are NaN or Inf")
    mask = torch.cat([part.mask for part in parts if part.mask is not None]) if all(masked) else None
    return Inputs(x, None if mask is None or mask.all() else mask)


def _inputs(batch: Any, where: str) -> Inputs:
    """Return one batch."""
    if isinstance(batch, Mapping):
        batch = {name: value for name, value in batch.items() if value is not None}
        read = {IMAGES} if IMAGES in batch else {IDS, TYPES, MASK}
        if (read & batch.keys()) and (left := [str(name) for name in batch if name not in read | {LABELS}]):
            warnings.warn(f"samples: the model is called without {', '.join(left)}", stacklevel=4)
        if IMAGES in batch:
            return _inputs(batch[IMAGES], where)
        if IDS not in batch:
            raise InputError(f"{where}: has {', '.join(map(str, batch))}, and neither {IDS} nor {IMAGES}")
        try:
            given = {name: torch.as_tensor(batch[name]) for name in (IDS, TYPES, MASK) if name in batch}
        except (ValueError, TypeError, RuntimeError) as error:
            raise InputError(f"{where}: no tensor of tokens ({error}); pad rows to one length: padding=True") from error
        if len({each.shape for each in given.values()}) > 1:
            raise InputError(f"{where}: {IDS}, {TYPES} and {MASK} have different shapes")
        ids, mask = given[IDS], _real(given[MASK], where).cpu() if MASK in given else None
        tokens = _tokens(ids, given.get(TYPES, torch.zeros_like(ids)), where)
        if mask is not None and (mask[:, 1:] & ~mask[:, :-1]).any():
            raise InputError(f"{where}: padding comes before a real token; pad at the end: positions count from there")
        return Inputs(tokens, mask)
    if not isinstance(batch, Tensor):
        raise InputError(f"{where}: {type(batch).__name__} is no tensor; give float (N, ...) or int64 (N, T)")
    if not batch.ndim:
        raise InputError(f"{where}: a single number; give rows of samples, (N, ...)")
    if batch.is_floating_point():
        return Inputs(batch.detach().cpu().float())
    return Inputs(_tokens(batch, torch.zeros_like(batch), where))


def _real(mask: Tensor, where: str) -> Tensor:
    """Return which tokens are real, bool (N, T): of a mask of 1 and 0, or of one that is added to logits, 0 and less.

    Raises:
        InputError: a row has no real token.
    """
    real = mask == 0 if mask.is_floating_point() and (mask < 0).any() else mask.bool()
    if not real.any(-1).all():
        raise InputError(f"{where}: {MASK} leaves a row without a token; 1 stands for a real token, 0 for padding")
    return real


def _tokens(ids: Tensor, types: Tensor, where: str) -> Tensor:
    """Return token ids and types, integers (N, T) each, as int64 (N, 2, T)."""
    if ids.ndim != 2 or ids.is_floating_point() or ids.dtype == torch.bool:
        raise InputError(
            f"{where}: {ids.dtype} of shape {tuple(ids.shape)}; token ids are integers (N, T), images: .float()"
        )
    return torch.stack([ids, types], 1).long().detach().cpu()
