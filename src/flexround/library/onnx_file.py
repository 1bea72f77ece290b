"""Write a quantized network as ONNX with QDQ nodes: integer weights, and Q/DQ pairs where activations are quantized."""

import copy
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
import torch.ao.quantization.fx._decomposed  # registers the operators that become Q and DQ
from torch import Tensor, nn
from torch.nn.utils import parametrize

from flexround.errors import InputError
from flexround.io import artifacts
from flexround.library.quantized import Quantized, input_key, refuse_narrow
from flexround.quant.activation import ActivationQuantizer
from flexround.reconstruct.codes import Stored

FILE = "model.onnx"
LARGEST = 2**31  # bytes of a protobuf message
Example = Tensor | Mapping[str, Tensor]
PASSED = ("Flatten", "MaxPool", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze")  # codes pass unchanged


class _Dequantize(nn.Module):
    """A stored weight as the exporter's operator, instead of the weight in floating point.

    ``apart`` puts a ``Reshape`` behind the operator. Without it onnxruntime fuses operator and product into
    MatMulNBits, which rounds the other factor to 8 bit.
    """

    def __init__(self, stored: Stored, apart: bool) -> None:
        super().__init__()
        assert stored.codes is not None
        grid = stored.grid
        axis = next((dim for dim, size in enumerate(grid.step.shape) if size > 1), 0)  # axis 1 for a transposed linear
        channels = stored.codes.shape[axis]
        step, zero = (value.reshape(-1).expand(channels).clone() for value in (grid.step, grid.zero_point))
        self.register_buffer("codes", stored.codes[None] if apart else stored.codes)
        self.register_buffer("step", step)
        self.register_buffer("zero", zero.to(torch.int64))
        self.arguments = (axis + int(apart), grid.qmin, grid.qmax, stored.codes.dtype)
        self.shape = stored.codes.shape

    def forward(self, _: Tensor) -> Tensor:
        """Return the weight, in the shape of its codes."""
        dequantize = torch.ops.quantized_decomposed.dequantize_per_channel
        return dequantize(self.codes, self.step, self.zero, *self.arguments).reshape(self.shape)


class _QuantizeDequantize(nn.Module):
    """An activation quantizer as the exporter's pair of operators."""

    def __init__(self, quantizer: ActivationQuantizer) -> None:
        super().__init__()
        grid = quantizer.stored()
        self.arguments = (float(grid.step), int(grid.zero_point), grid.qmin, grid.qmax)
        self.kind = torch.int8 if grid.qmin < 0 else torch.uint8

    def forward(self, x: Tensor) -> Tensor:
        """Return the quantized ``x`` of any shape."""
        operators = torch.ops.quantized_decomposed
        codes = operators.quantize_per_tensor(x, *self.arguments, self.kind)
        return operators.dequantize_per_tensor(codes, *self.arguments, self.kind)


@torch.no_grad()
def write(quantized: Quantized, directory: Path, example: Example | None = None) -> None:
    """Write ``model.onnx``, which computes in float32; the batch size and the length of token ids are free.

    Args:
        quantized: network whose activations have 8 bit or none.
        directory: directory of the file.
        example: inputs of a call, (N, ...) with N at least 2; for transformers also by name.

    Raises:
        InputError: no example is given, or Q and DQ can't hold the activations.
    """
    rows = next(iter(example.values()), None) if isinstance(example, Mapping) else example
    if example is None or rows is None or len(rows) < 2:
        raise InputError("export onnx: give example=, a batch of at least 2 inputs: the graph is traced with it")
    grids = {key: one.grid for part in quantized.parts.values() for key, one in part.quantized.items()}
    refuse_narrow("onnx", {key: (grid.qmin, grid.qmax) for key, grid in grids.items()})
    model = copy.deepcopy(quantized.model).cpu().float().eval()
    for name, stored in quantized.codes().items():
        layer = model.get_submodule(name)
        apart = not isinstance(layer, nn.Conv2d) and not input_key(name, grids, quantized.report)
        parametrize.register_parametrization(layer, "weight", _Dequantize(stored, apart), unsafe=True)
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, ActivationQuantizer):
                setattr(module, name, _QuantizeDequantize(child))
    proto = _traced(model, example)
    if proto.ByteSize() >= LARGEST:
        raise InputError(f"export onnx: {proto.ByteSize() / 1e9:.1f} GB; one file holds 2; use compressed-tensors")
    _fit_biases(proto.graph)
    _own_constants(proto.graph)
    if size := proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value:
        warnings.warn(f"export onnx: the network's code fixes the batch; the file takes {size} rows", stacklevel=4)
    onnx.checker.check_model(proto)
    artifacts.write_bytes(directory / FILE, proto.SerializeToString())


def run(quantized: Quantized, directory: Path, x: Tensor) -> Any:
    """Return the output of onnxruntime for ``x`` (N, ...), from the file written by ``write``.

    Inputs after the first are masks that mark every token as real, and types of tokens, all 0. A file with a fixed
    batch size gets a batch of this size.

    Raises:
        InputError: onnxruntime can't run the file.
    """
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.add_session_config_entry("session.x64quantprecision", "1")  # else old CPUs saturate
    session = onnxruntime.InferenceSession(str(directory / FILE), options)
    first, *others = session.get_inputs()
    size = first.shape[0] if isinstance(first.shape[0], int) else len(x)
    rows = torch.cat([x] * size)[:size].numpy()
    ones = {other.name: np.full(rows.shape, "mask" in other.name, np.int64) for other in others}
    return [torch.from_numpy(value)[: len(x)] for value in session.run(None, {first.name: rows, **ones})]


def _own_constants(graph: onnx.GraphProto) -> None:
    """Give each Q and DQ node its own constants: ``x64quantprecision`` changes signed constants in place."""
    held, used = {each.name: each for each in graph.initializer}, set[str]()
    for node in (node for node in graph.node if node.op_type in ("QuantizeLinear", "DequantizeLinear")):
        for place, name in enumerate(node.input):
            if name in held and name in used:
                node.input[place] = f"{name}.{node.output[0]}.{place}"
                graph.initializer.add().CopyFrom(held[name])
                graph.initializer[-1].name = node.input[place]
            used.add(name)


def _fit_biases(graph: onnx.GraphProto) -> None:
    """Raise the steps of channels whose bias overflows int32, in units of weight step times input step.

    onnxruntime adds the bias as int32. A batch norm that switches a channel off leaves such a small step; with the
    raised step almost all codes are zero, and their effect beside the bias is negligible.
    """
    made = {node.output[0]: node for node in graph.node if node.op_type == "DequantizeLinear"}
    passed = {node.output[0]: node.input[0] for node in graph.node if node.op_type in PASSED}
    held = {each.name: each for each in graph.initializer}
    for node in (node for node in graph.node if node.op_type in ("Conv", "Gemm") and len(node.input) > 2):
        x, weight, bias = node.input
        while x in passed:
            x = passed[x]
        if not (x in made and weight in made and bias in held):
            continue
        names = [made[x].input[1], *made[weight].input, bias]
        x_step, codes, step, zero, values = (onnx.numpy_helper.to_array(held[name]) for name in names)
        raised = np.maximum(step, np.abs(values) / (LARGEST / 2 * x_step)).astype(step.dtype)
        if (raised > step).any():
            outputs = onnx.helper.get_node_attr_value(made[weight], "axis")  # axis 1 for a transposed linear
            each = [-1 if axis == outputs else 1 for axis in range(codes.ndim)]
            ratio, zero = (step / raised).reshape(each), zero.reshape(each).astype(np.float32)
            smaller = ((codes - zero) * ratio).round() + zero
            held[names[1]].CopyFrom(onnx.numpy_helper.from_array(smaller.astype(codes.dtype), names[1]))
            made[weight].input[1] = f"{weight}.step"  # a new tensor: layers share equal tensors in the file
            graph.initializer.append(onnx.numpy_helper.from_array(raised, f"{weight}.step"))


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
        except Exception as error:  # of many kinds, with advice for the model's author
            reason = str(error.__cause__ or error).strip().splitlines()[0]
            raise InputError(f"export onnx: {type(model).__name__} can't be traced: {reason}") from error
    assert program is not None
    proto = program.model_proto
    for node in proto.graph.node:
        del node.metadata_props[:]  # local file and line of each operation
    return proto


def _given(example: Example) -> tuple[tuple[Tensor, ...], dict[str, Tensor], Any]:
    """Return arguments, named arguments, and their free dimensions."""
    batch, length = torch.export.Dim("batch", min=1), torch.export.Dim.AUTO  # free, unless the network fixes it

    def given(x: Tensor) -> Tensor:
        return x.cpu().float() if x.is_floating_point() else x.cpu()

    def free(x: Tensor) -> dict[int, Any]:
        return {0: batch} if x.is_floating_point() else {0: batch, 1: length}

    if isinstance(example, Tensor):
        return (given(example),), {}, (free(example),)
    return (), {name: given(x) for name, x in example.items()}, {name: free(x) for name, x in example.items()}
