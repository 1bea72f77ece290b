"""Grid shifts of a quantized weight: learned integer codes minus those of round-to-nearest (figures 3, 4, 6)."""

import dataclasses
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from flexround import artifacts
from flexround.errors import InputError, suggest


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
        weight: its folded full-precision weight.

    Raises:
        InputError: no such quantized weight, or another shape.
    """
    grids = artifacts.read_manifest(directory)["grids"]
    key = f"weight/{module}"
    if key not in grids:
        known = [name.partition("/")[2] for name in grids if name.startswith("weight/")]
        raise InputError(f"{directory}: quantized weight {suggest(module, known)}")
    tensors = load_file(directory / "model.safetensors")
    codes, zero_point = tensors[f"{key}:codes"].astype(np.int64), tensors[f"{key}:zero_point"]
    if codes.shape != weight.shape:
        raise InputError(f"{directory}: {module} has shape {codes.shape}, the checkpoint's is {weight.shape}")
    nearest = np.rint(weight / tensors[f"{key}:initial_step"]) + zero_point
    nearest = np.clip(nearest, grids[key]["qmin"], grids[key]["qmax"]).astype(np.int64)
    return WeightCodes(codes.ravel(), nearest.ravel())
