"""Write a quantized Transformer as a compressed-tensors directory, which ``transformers`` loads.

Configuration and packed weights are made by that library's own code, from our codes' values and steps.
"""

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from compressed_tensors.compressors import ModelCompressor
from compressed_tensors.quantization import (
    QuantizationArgs,
    QuantizationConfig,
    QuantizationScheme,
    QuantizationStatus,
    apply_quantization_config,
)
from torch import Tensor, nn

from flexround.errors import InputError
from flexround.library.quantized import Quantized
from flexround.models.surgery import attach
from flexround.quant.activation import ActivationQuantizer
from flexround.quant.grid import Grid
from flexround.reconstruct.codes import Stored

PACKED, WHOLE = "pack-quantized", "int-quantized"  # the format's names: several codes in an int32, one in an int8
BYTE = 8  # bits
GROUPED = 3  # dimensions of the step of a weight in groups
FORMAT = "compressed-tensors"
SITE = "input_quantizer"  # the attribute that surgery.attach sets


@torch.no_grad()
def write(quantized: Quantized, directory: Path) -> None:
    """Write the network: config.json with the format's section, and its weights, steps in the type of the model.

    Args:
        quantized: a model of ``transformers`` whose linears have weights of 4 or 8 bit, activations of none or 8 bit.
        directory: to be made, or empty.

    Raises:
        InputError: what the format, or transformers' reading of it, can't hold; nothing is written then.
    """
    codes = quantized.codes()
    bits = _check(quantized, codes)
    model: Any = copy.deepcopy(quantized.model).float()
    attach.strip(model)
    inputs = {name: _input_quantizer(quantized.model, name) for name in codes} if quantized.sites else {}
    symmetric = next(iter(codes.values())).grid.qmin < 0
    configuration = _configuration(model, list(codes), bits, symmetric, bool(inputs), _group_size(quantized, codes))
    apply_quantization_config(model, configuration)
    modules = dict(model.named_modules())
    for name, stored in codes.items():
        _fill(modules[name], stored, inputs.get(name))
    compressor = ModelCompressor.from_pretrained_model(model)
    compressor.compress_model(model)
    model.to(quantized.model.dtype)  # now that the codes are packed, which a smaller type would move
    directory.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(directory)
    compressor.update_config(str(directory))


def _check(quantized: Quantized, codes: Mapping[str, Stored]) -> int:
    """Return the bits of the weights.

    Raises:
        InputError: the format can't hold them.
    """
    model = quantized.model
    if not hasattr(model, "save_pretrained"):
        raise InputError(f"export {FORMAT}: {type(model).__name__} is no model of transformers; it is for those alone")
    modules = dict(model.named_modules())
    foreign = [name for name in codes if not isinstance(modules[name], nn.Linear)]
    if foreign:
        kind = type(modules[foreign[0]]).__name__
        raise InputError(f"export {FORMAT}: {foreign[0]} is a {kind}; the format knows nn.Linear alone")
    ranges = {(stored.grid.qmin, stored.grid.qmax) for stored in codes.values()}
    if len(ranges) > 1:
        raise InputError(f"export {FORMAT}: weights of several widths, {sorted(ranges)}; it is written with one")
    low, high = ranges.pop()
    bits = (high - low).bit_length()
    if bits not in (4, BYTE):
        raise InputError(f"export {FORMAT}: weights of {bits} bit; the format packs 4 and 8; quantize with one of them")
    activations = quantized.recipe.a_bits
    if activations not in (None, BYTE) or (activations and bits != BYTE):
        raise InputError(
            f"export {FORMAT}: W{bits}A{activations}; transformers reads activations of 8 bit with weights of 8 bit, "
            "or weights alone"
        )
    if quantized.hyper.a_granularity == "token" and activations:
        raise InputError(f"export {FORMAT}: a_granularity=token has no steps to store; set a_granularity='tensor'")
    if low == 0 and not activations:
        raise InputError(
            f"export {FORMAT}: packed weights on an asymmetric grid are written but not read back by transformers; "
            "quantize with w_scheme='symmetric'"
        )
    return bits


def _input_quantizer(model: nn.Module, name: str) -> ActivationQuantizer:
    """Return the quantizer of what a linear reads: at it, or at the module around it that shares its input."""
    while name:
        quantizer = getattr(model.get_submodule(name), SITE, None)
        if quantizer is not None:
            return quantizer
        name = name.rpartition(".")[0]
    raise AssertionError("each linear of a block reads a quantized tensor")


def _group_size(quantized: Quantized, codes: Mapping[str, Stored]) -> int | None:
    """Return how many input channels have a step together; None if all of an output channel have."""
    grouped = any(stored.grid.step.ndim == GROUPED for stored in codes.values())
    return quantized.hyper.group_size if grouped else None


def _configuration(
    model: nn.Module, targets: list[str], bits: int, symmetric: bool, activations: bool, size: int | None
) -> QuantizationConfig:
    """Return the format's configuration: weights per output channel or group of ``size``, activations per tensor."""
    strategy = {"strategy": "channel"} if size is None else {"strategy": "group", "group_size": size}
    weights = QuantizationArgs(num_bits=bits, type="int", symmetric=symmetric, **strategy)
    inputs = QuantizationArgs(num_bits=BYTE, type="int", symmetric=False, strategy="tensor") if activations else None
    others = [
        name for name, module in model.named_modules() if isinstance(module, nn.Linear) and name not in set(targets)
    ]
    return QuantizationConfig(
        config_groups={"group_0": QuantizationScheme(targets=targets, weights=weights, input_activations=inputs)},
        format=WHOLE if activations else PACKED,
        ignore=others,
        quantization_status=QuantizationStatus.FROZEN,
    )


def _fill(module: Any, stored: Stored, inputs: ActivationQuantizer | None) -> None:
    """Give a linear its values, steps and zero points; the format's codes are signed whatever ours are."""
    module.weight.copy_(stored.values())
    module.weight_scale.copy_(_columns(stored.grid.step))
    if stored.grid.qmin == 0:
        module.weight_zero_point.copy_(_columns(_signed(stored.grid)))
    if inputs is not None:
        module.input_scale.copy_(inputs.step())
        module.input_zero_point.copy_(_signed(inputs.grid))


def _columns(value: Tensor) -> Tensor:
    """Return a step or zero point as (Cout, groups), (Cout, 1) or, of one for all, (1, 1)."""
    return value.squeeze(2) if value.ndim == GROUPED else value.reshape(-1, 1)


def _signed(grid: Grid) -> Tensor:
    """Return the zero point of a grid, its shape, among signed codes."""
    return grid.zero_point - (0 if grid.qmin < 0 else (grid.qmax + 1) // 2)
