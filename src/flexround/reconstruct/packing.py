"""Codes on disk: those of fewer than eight bits lie in bit planes, which is lossless and takes bits / 8 of a byte each.

Whoever reads or writes a file with codes does it here. The file's metadata say which tensors are packed, their shapes,
bits and least codes.
"""

import contextlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from flexround.errors import InputError

CODES = ":codes"  # end of a key
BYTE = 8  # bits
PACKED = "packed"  # the only key of the metadata: several are written in an order that changes from run to run


def pack(codes: Tensor, qmin: int, bits: int) -> Tensor:
    """Return the bit planes, uint8 (bits, n / 8 rounded up), of n stored codes, int8 or uint8 of any shape."""
    flat = (codes - qmin).to(torch.uint8).flatten().numpy()
    return torch.from_numpy(np.stack([np.packbits(flat >> bit & 1) for bit in range(bits)]))


def unpack(planes: Tensor, qmin: int, shape: Iterable[int]) -> Tensor:
    """Undo :func:`pack`; return codes of ``shape``, int8 if ``qmin`` is negative, else uint8."""
    shape = tuple(shape)
    flat = np.zeros(math.prod(shape), np.uint8)
    for bit, plane in enumerate(planes.numpy()):
        flat |= np.unpackbits(plane, count=flat.size) << bit
    codes = torch.from_numpy(flat).view(shape)
    return codes.to(torch.int8) + qmin if qmin < 0 else codes


def encode(tensors: Mapping[str, Tensor], grids: Mapping[str, Mapping[str, int]]) -> bytes:
    """Return a file of CPU tensors, any shape; ``grids`` has ``qmin`` and ``qmax`` by key without ``:codes``."""
    content, packed = {}, {}
    for key, value in tensors.items():
        content[key] = value
        if key.endswith(CODES):
            grid = grids[key.removesuffix(CODES)]
            bits = (grid["qmax"] - grid["qmin"]).bit_length()
            if bits < BYTE:
                content[key] = pack(value, grid["qmin"], bits)
                packed[key] = {"shape": list(value.shape), "bits": bits, "qmin": grid["qmin"]}
    return save(content, {PACKED: json.dumps(packed, sort_keys=True)} if packed else None)


def read(path: Path, keys: Iterable[str] | None = None) -> dict[str, Tensor]:
    """Return tensors of a file, all if no ``keys`` are given, with codes as they were before they were packed.

    Raises:
        InputError: the file is damaged, or its metadata don't fit the planes.
    """
    with _opened(path) as (file, packed):
        found = {key: file.get_tensor(key) for key in (file.keys() if keys is None else keys)}
        for key in found.keys() & packed.keys():
            facts = packed[key]
            needed = (facts["bits"], math.ceil(math.prod(facts["shape"]) / BYTE))
            if tuple(found[key].shape) != needed:
                raise ValueError(
                    f"the planes of {key} have shape {tuple(found[key].shape)}, its metadata ask for {needed}"
                )
            found[key] = unpack(found[key], facts["qmin"], facts["shape"])
    return found


def shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Return the shapes of all tensors of a file, of codes those before they were packed; reads no tensor.

    Raises:
        InputError: the file is damaged.
    """
    with _opened(path) as (file, packed):
        return {
            key: tuple(packed[key]["shape"] if key in packed else file.get_slice(key).get_shape())
            for key in file.keys()  # noqa: SIM118 (it is no dict)
        }


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Open a file; yield it and the facts of its packed tensors. Any damage that its reader meets is one message."""
    try:
        with safe_open(path, framework="pt") as file:
            yield file, json.loads((file.metadata() or {}).get(PACKED, "{}"))
    except (SafetensorError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise InputError(f"{path}: damaged: {error}; delete {path.parent} and run the same command again") from error
