"""Write a quantized network as a state dict of dequantized weights."""

from pathlib import Path

from safetensors.torch import save_model

from flexround.errors import InputError
from flexround.io import artifacts
from flexround.library.quantized import Quantized


def write(quantized: Quantized, directory: Path) -> None:
    """Write ``model.safetensors``: batch norms folded, the names and types of the model.

    Raises:
        InputError: activations are quantized, which a state dict can't hold.
    """
    if quantized.sites:
        raise InputError("export torch: a state dict has no place for quantized activations; use save, or onnx")
    artifacts.atomic_write(
        directory / "model.safetensors", lambda temporary: save_model(quantized.model, str(temporary))
    )
