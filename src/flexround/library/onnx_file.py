"""Write a quantized network as ONNX with QDQ nodes: integer weights, and Q/DQ pairs where activations are quantized."""

import copy
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
import torch.ao.quantization.fx._decomposed  # registers the operators that become Q and DQ
from onnx import helper, numpy_helper
from torch import Tensor, nn

from flexround.errors import InputError
from flexround.io import artifacts
from flexround.library.quantized import Quantized
from flexround.models.tensors import put
from flexround.quant.activation import ActivationQuantizer
from flexround.reconstruct.codes import Stored

FILE = "model.onnx"
BYTE = 8  # bits
LARGEST = 2**31  # bytes of a protobuf message
Example = Tensor | Mapping[str, Tensor]


class _QuantizeDequantize(nn.Module):
    """An activation quantizer as the pair of operators that the exporter knows."""

    def __init__(self, quantizer: ActivationQuantizer) -> None:
        super().__init__()
        grid = quantizer.stored()
        self.arguments = (float(grid.step), int(grid.zero_point), grid.qmin, grid.qmax)
        self.kind = torch.int8 if grid.qmin < 0 else torch.uint8

    def forward(self, x: Tensor) -> Tensor:
        """Return the quantized ``x``, any shape."""
        operators = torch.ops.quantized_decomposed
        codes = operators.quantize_per_tensor(x, *self.arguments, self.kind)
        return operators.dequantize_per_tensor(codes, *self.arguments, self.kind)


@torch.no_grad()
def write(quantized: Quantized, directory: Path, example: Example | None = None) -> None:
    """Write ``model.onnx``, which computes in float32; the size of its batches is free, and of token ids the length.

    Args:
        quantized: of which activations have 8 bit or none.
        directory: of the file.
        example: inputs as the model is called with, (N, ...) with N of at least 2; for transformers also by name.

    Raises:
        InputError: no example, or activations that Q and DQ can't hold.
    """
    rows = next(iter(example.values()), None) if isinstance(example, Mapping) else example
    if example is None or rows is None or len(rows) < 2:
        raise InputError("export onnx: give example=, a batch of at least 2 inputs: the graph is traced with it")
    if quantized.sites and (quantized.recipe.a_bits != BYTE or quantized.hyper.a_granularity != "tensor"):
        raise InputError(
            f"export onnx: activations of {quantized.recipe.a_bits} bit per {quantized.hyper.a_granularity}; the nodes "
            "for them have 8 bit per tensor"
        )
    if quantized.hyper.w_granularity == "group":
        raise InputError("export onnx: weights in groups; the nodes have a step for each output channel or one for all")
    model, codes = copy.deepcopy(quantized.model).cpu().float().eval(), quantized.codes()
    for name, stored in codes.items():  # a smaller type has rounded them
        put((model.get_submodule(name), "weight"), stored.values())
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, ActivationQuantizer):
                setattr(module, name, _QuantizeDequantize(child))
    proto = _traced(model, example)
    _store_codes(proto, codes)
    if proto.ByteSize() >= LARGEST:
        raise InputError(f"export onnx: {proto.ByteSize() / 1e9:.1f} GB; one file holds 2; use compressed-tensors")
    onnx.checker.check_model(proto)
    artifacts.write_bytes(directory / FILE, proto.SerializeToString())


def _traced(model: nn.Module, example: Example) -> onnx.ModelProto:
    """Return the graph of a model with weights in float32; InputError if it can't be traced."""
    arguments, named, free = _given(example)
    if hasattr(model, "config"):
        model.config.use_cache = False  # type: ignore[union-attr]
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as scratch:
        warnings.simplefilter("ignore")
        try:
            program = torch.onnx.export(
                model, arguments, kwargs=named, dynamo=True, dynamic_shapes=free, verbose=False, artifacts_dir=scratch
            )
        except Exception as error:  # of many kinds, with advice for whoever wrote the model
            reason = str(error.__cause__ or error).strip().splitlines()[0]
            raise InputError(f"export onnx: {type(model).__name__} can't be traced: {reason}") from error
    assert program is not None
    return program.model_proto


def _given(example: Example) -> tuple[tuple[Tensor, ...], dict[str, Tensor], Any]:
    """Return arguments, named arguments, and which of their dimensions are free."""
    batch, length = torch.export.Dim("batch", min=1), torch.export.Dim.AUTO  # free, unless the network fixes it

    def given(x: Tensor) -> Tensor:
        return x.cpu().float() if x.is_floating_point() else x.cpu()

    def free(x: Tensor) -> dict[int, Any]:
        return {0: batch} if x.is_floating_point() else {0: batch, 1: length}

    if isinstance(example, Tensor):
        return (given(example),), {}, (free(example),)
    return (), {name: given(x) for name, x in example.items()}, {name: free(x) for name, x in example.items()}


def _store_codes(proto: onnx.ModelProto, codes: Mapping[str, Stored]) -> None:
    """Replace the quantized weights of a graph by codes and DequantizeLinear nodes; InputError if it lacks a weight."""
    graph = proto.graph
    there = {each.name: numpy_helper.to_array(each) for each in graph.initializer}
    for name, stored in codes.items():
        values = stored.values().numpy()
        place, turned = _place(there, f"{name}.weight", values)
        if place is None:
            raise InputError(f"export onnx: {name}.weight is not in the traced graph; the exporter changed it")
        assert stored.codes is not None
        integers = stored.codes.numpy()
        grids = (part.numpy().reshape(-1) for part in (stored.grid.step, stored.grid.zero_point))
        step, zero = (np.broadcast_to(part, len(integers)) for part in grids)  # of one for all, or one for each row
        _replace(graph, place, integers.T if turned else integers, step, zero, axis=integers.ndim - 1 if turned else 0)


def _place(there: Mapping[str, np.ndarray], name: str, values: np.ndarray) -> tuple[str | None, bool]:
    """Return the name of a weight in the graph, and whether it lies transposed there, as the exporter has linears."""
    for other in [name, *there]:
        for turned, wanted in ((False, values), (True, values.T)) if values.ndim == 2 else ((False, values),):
            if other in there and np.array_equal(there[other], wanted):
                return other, turned
    return None, False


def _replace(graph: Any, name: str, codes: np.ndarray, step: np.ndarray, zero: np.ndarray, axis: int) -> None:
    """Put codes, one step and zero point for each entry along ``axis``, and a DequantizeLinear where a weight was."""
    quantized = {output for node in graph.node if node.op_type == "DequantizeLinear" for output in node.output}
    multiplied = [node.input[0] for node in graph.node if node.op_type == "MatMul" and name in node.input]
    kept = [each for each in graph.initializer if each.name != name]
    del graph.initializer[:]
    value = name
    if any(other not in quantized for other in multiplied):
        # Of both nodes onnxruntime makes a MatMulNBits, which rounds the other input to 8 bit; not beyond a Reshape.
        kept.append(numpy_helper.from_array(np.array(codes.shape), f"{name}:shape"))
        value, codes, axis = f"{name}:value", codes[None], axis + 1
        graph.node.insert(0, helper.make_node("Reshape", [value, f"{name}:shape"], [name], f"{name}:reshape"))
    parts = {"codes": np.ascontiguousarray(codes), "step": step, "zero": zero.astype(codes.dtype)}
    graph.initializer.extend(kept)
    graph.initializer.extend(numpy_helper.from_array(part.copy(), f"{name}:{key}") for key, part in parts.items())
    node = helper.make_node("DequantizeLinear", [f"{name}:{key}" for key in parts], [value], f"{name}:dq", axis=axis)
    graph.node.insert(0, node)
