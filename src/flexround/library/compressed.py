"""Write a quantized Transformer as a compressed-tensors directory, which ``transformers`` loads.

The compressed-tensors library packs the weights, layer by layer, from the values and steps of our codes.
"""

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import compressed_tensors
import torch
import transformers
from compressed_tensors.compressors import NaiveQuantizationCompressor, PackedQuantizationCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationConfig, QuantizationScheme, QuantizationStatus
from torch import Tensor, nn

from flexround.errors import InputError
from flexround.library import probe
from flexround.library.quantized import Quantized, input_key, refuse_narrow
from flexround.models.tensors import untied
from flexround.models.weights import Writer
from flexround.quant.grid import Grid, Scheme, code_range
from flexround.reconstruct.codes import BYTE, WEIGHT, Stored
from flexround.settings.schema import Hyper, Recipe

FORMAT = "compressed-tensors"
PACKED, WHOLE = "pack-quantized", "int-quantized"  # the format's names: several codes in an int32, one code in an int8
COMPRESSORS = {PACKED: PackedQuantizationCompressor, WHOLE: NaiveQuantizationCompressor}
GROUPED = 3  # dimensions of a grouped weight's step


@torch.no_grad()
def write(quantized: Quantized, directory: Path) -> None:
    """Write config.json with the format's section, and shards of weights; steps have the model's type.

    Args:
        quantized: a model of ``transformers`` in the type of the written tensors, with or without values. Its parts are
            read twice, one in memory at a time; weights have 4 or 8 bit, activations none or 8 bit.
        directory: new or empty.

    Raises:
        InputError: the format or transformers' reader can't hold the network; nothing is written then.
    """
    model, recipe, hyper = quantized.model, quantized.recipe, quantized.hyper
    if not hasattr(model, "save_pretrained"):
        raise InputError(f"export {FORMAT}: {type(model).__name__} is no model of transformers; it is for those alone")
    grids: dict[str, tuple[int, int]] = {}
    sites: dict[str, Stored] = {}  # setting B learns sites after the weights, so other parts hold them
    for part in quantized.parts.values():
        grids |= {key: (stored.grid.qmin, stored.grid.qmax) for key, stored in part.quantized.items()}
        sites |= {key: stored for key, stored in part.quantized.items() if not key.startswith(WEIGHT)}
    ranges = {key.removeprefix(WEIGHT): codes for key, codes in grids.items() if key.startswith(WEIGHT)}
    _check(ranges, model, recipe, hyper)
    refuse_narrow(FORMAT, grids)
    inputs = {layer: input_key(layer, grids, quantized.report) for layer in ranges}
    if recipe.a_bits and (floating := [layer for layer, key in inputs.items() if not key]):
        raise InputError(
            f"export {FORMAT}: the input of {floating[0]} is in floating point, the format quantizes each layer's; "
            "give it a site in blocks=, or export to onnx"
        )
    form = WHOLE if recipe.a_bits else PACKED
    scheme = _scheme(list(ranges), form, recipe, hyper)
    writer, owners, kind = Writer(directory), untied(model), next(model.parameters()).dtype
    directory.mkdir(parents=True, exist_ok=True)
    for part in quantized.parts.values():
        for name, value in part.parameters.items():
            if name in owners:
                writer.add(name, _cast(value, kind))
        for key, stored in part.quantized.items():
            if key.startswith(WEIGHT):
                name = key.removeprefix(WEIGHT)
                tensors = _layer(stored, sites[inputs[name]] if recipe.a_bits else None, scheme)
                packed = COMPRESSORS[form].compress(tensors, scheme)
                for leaf, value in packed.items():
                    writer.add(f"{name}.{leaf}", _cast(value, kind))
    writer.finish()
    _write_config(model, scheme, form, directory)


@torch.no_grad()
def run(quantized: Quantized, directory: Path, x: Tensor) -> Any:
    """Return the output of transformers for ``x`` (N, ...), from a directory written by ``write``.

    The model is loaded as a class of transformers: a user's subclass is read as its parent.
    """
    kinds = [kind for kind in type(quantized.model).__mro__ if getattr(transformers, kind.__name__, None) is kind]
    kind: Any = type(quantized.model) if kinds[0] is transformers.PreTrainedModel else kinds[0]
    model = kind.from_pretrained(directory, dtype=quantized.model.dtype, local_files_only=True)
    return probe.run(model.to(quantized.model.device), x)


def _cast(value: Tensor, kind: torch.dtype) -> Tensor:
    return value.to(kind) if value.is_floating_point() else value


def _check(ranges: Mapping[str, tuple[int, int]], model: nn.Module, recipe: Recipe, hyper: Hyper) -> None:
    """Raise InputError for weights (code ranges by layer) outside plain linears, or on several kinds of grid."""
    modules = dict(model.named_modules())
    foreign = [name for name in ranges if type(modules[name]).forward is not nn.Linear.forward]
    if foreign:
        kind = type(modules[foreign[0]]).__name__
        raise InputError(
            f"export {FORMAT}: {foreign[0]} is a {kind}; the format knows nn.Linear alone, with its own forward"
        )
    assert recipe.w_bits
    one = code_range(Scheme(recipe.w_bits, hyper.w_scheme == "symmetric"), has_negatives=True)
    if other := {name: codes for name, codes in ranges.items() if codes != one}:
        raise InputError(f"export {FORMAT}: all weights need codes of {one}, other layers are {other}")


def _scheme(targets: list[str], form: str, recipe: Recipe, hyper: Hyper) -> QuantizationScheme:
    """Return the format's scheme: weights per output channel or group, activations per tensor."""
    size = hyper.group_size if hyper.w_granularity == "group" else None
    kind = "channel" if size is None else "group"
    symmetric = hyper.w_scheme == "symmetric"
    weights = QuantizationArgs(num_bits=recipe.w_bits, type="int", symmetric=symmetric, strategy=kind, group_size=size)
    inputs = QuantizationArgs(num_bits=BYTE, type="int", symmetric=False, strategy="tensor") if recipe.a_bits else None
    return QuantizationScheme(targets=targets, weights=weights, input_activations=inputs, format=form)


def _layer(stored: Stored, read: Stored | None, scheme: QuantizationScheme) -> dict[str, Tensor]:
    """Return a linear's values, steps and zero points; the format's codes are always signed.

    ``read`` is the layer's input if it is quantized.
    """
    values = stored.values()
    found = {"weight": values, "weight_scale": _columns(stored.grid.step, len(values))}
    if not scheme.weights.symmetric:
        found["weight_zero_point"] = _columns(_signed(stored.grid), len(values)).to(torch.int8)
    if read is not None:
        found["input_scale"] = read.grid.step.reshape(1)
        found["input_zero_point"] = _signed(read.grid).reshape(1).to(torch.int8)
    return found


def _columns(value: Tensor, outputs: int) -> Tensor:
    """Return a step or zero point as (outputs, groups), or (outputs, 1)."""
    return value.squeeze(2) if value.ndim == GROUPED else value.reshape(-1, 1).expand(outputs, 1)


def _signed(grid: Grid) -> Tensor:
    """Return the zero point of a grid, in its shape, for signed codes."""
    return grid.zero_point - (0 if grid.qmin < 0 else (grid.qmax + 1) // 2)


def _write_config(model: Any, scheme: QuantizationScheme, form: str, directory: Path) -> None:
    """Write the model's configuration with the format's section."""
    linears = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    section = QuantizationConfig(
        config_groups={"group_0": scheme},
        format=form,
        ignore=[name for name in linears if name not in set(scheme.targets)],
        quantization_status=QuantizationStatus.COMPRESSED,
    )
    config = copy.deepcopy(model.config)
    config.architectures, config.dtype = [type(model).__name__], model.dtype
    config.quantization_config = section.model_dump(mode="json") | {"version": compressed_tensors.__version__}
    config.save_pretrained(directory)
    if model.can_generate() and not (directory / "generation_config.json").exists():  # keep the maker's file
        model.generation_config.save_pretrained(directory)
