"""Grid shifts of a quantized weight: learned integer codes minus those of round-to-nearest (figures 3, 4, 6)."""

import dataclasses
from pathlib import Path

import numpy as np

from flexround.errors import InputError, suggest
from flexround.io import artifacts
from flexround.reconstruct import packing


@dataclasses.dataclass(frozen=True)
class WeightCodes:
    """One weight: codes after learning and codes of round-to-nearest with the *initial* step, both int64, flat."""

    learned: np.ndarray
    nearest: np.ndarray


def weight_codes(directory: Path, module: str, weight: np.ndarray) -> WeightCodes:
    """Read the codes of one weight of a quantized network.

    Args:
        directory: result of the reconstruct stage.
        module: name of the module in the network.
        weight: its folded full-precision weight, any shape.

    Raises:
        InputError: no such quantized weight, or another shape.
    """
    grids = artifacts.read_manifest(directory)["grids"]
    files = {key: file for file, of_file in grids.items() for key in of_file}
    key = f"weight/{module}"
    if key not in files:
        known = [name.partition("/")[2] for name in files if name.startswith("weight/")]
        raise InputError(f"{directory}: quantized weight {suggest(module, known)}")
    parts = [f"{key}:{part}" for part in ("codes", "zero_point", "initial_step")]
    tensors = packing.read(directory / files[key], parts)
    codes, zero_point, step = (tensors[part].numpy() for part in parts)
    if codes.shape != weight.shape:
        raise InputError(f"{directory}: {module} has shape {codes.shape}, the checkpoint's is {weight.shape}")
    limits = grids[files[key]][key]
    nearest = np.clip(np.rint(weight / step) + zero_point, limits["qmin"], limits["qmax"])
    return WeightCodes(codes.astype(np.int64).ravel(), nearest.astype(np.int64).ravel())
