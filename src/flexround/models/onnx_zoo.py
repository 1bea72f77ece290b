"""MobileNetV2 of the ONNX model zoo, as far as its float32 weights can be had."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import numpy_helper
from torch import nn

from flexround.errors import InputError
from flexround.models.checkpoints import load_into

CLASSIFIER = "mobilenetv2-12-int8.onnx"  # beside the directory of the other weights


def import_mobilenetv2(model: Any, directory: Path, _: Path) -> None:
    """Load mobilenetv2-7 of the ONNX model zoo into a ``folded`` network.

    ``directory`` has an array for each weight and bias of a convolution, named after the nodes of the graph, which are
    in the order of the modules, and the bias of the classifier. Its weight is that of the zoo's 8-bit network beside
    the directory, int8 (1280, 1000) with a scale for each class.

    Raises:
        InputError: missing or damaged files, or of another network.
    """
    convolutions = [name for name, module in model.named_modules() if isinstance(module, nn.Conv2d)]
    numbers = sorted(int(path.name.split("_")[1]) for path in directory.glob("conv_*_weight.npy"))
    if len(numbers) != len(convolutions):
        raise InputError(f"{directory}: {len(numbers)} convolutions instead of {len(convolutions)}; fetch it again")
    try:
        state = {
            f"{name}.{kind}": np.load(directory / f"conv_{number}_{kind}.npy")
            for name, number in zip(convolutions, numbers, strict=True)
            for kind in ("weight", "bias")
        }
        state["classifier.1.bias"] = np.load(directory / "gemm_104_bias.npy")
        graph = onnx.load(directory.parent / CLASSIFIER).graph
        arrays = {each.name: numpy_helper.to_array(each) for each in graph.initializer}
        codes, scale = (arrays[f"classifier.1.weight_{kind}"] for kind in ("quantized", "scale"))
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"{directory.parent}: {error}; fetch it again") from error
    state["classifier.1.weight"] = (codes.astype(np.float32) * scale).T
    load_into(model, {name: torch.tensor(value) for name, value in state.items()}, str(directory))
