"""What a network makes a device do, op by op, from shapes alone: real code on tensors that have no memory."""

import contextlib
import dataclasses
import weakref
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from flexround import imports
from flexround.models import build
from flexround.models.blocks import Block
from flexround.models.tensors import weightless
from flexround.quant import fused
from flexround.quant.activation import ActivationQuantizer
from flexround.quant.grid import Grid, Scheme
from flexround.quant.rounding import Rounding
from flexround.quant.search import initial_grid
from flexround.reconstruct.optimise import ReconstructionError
from flexround.settings.cost import Group, Network, Op, Rounded, Work
from flexround.settings.schema import Checkpoint
from flexround.surgery import place
from flexround.tasks.protocol import Task

SIDE = 64  # of the weight that a rounding is counted on
FREE = {torch.ops.aten.detach, torch.ops.aten.empty, torch.ops.aten.empty_like, torch.ops.aten.empty_strided}


class Tally(TorchDispatchMode):
    """Counts kernels, their arithmetic and traffic, and the bytes of the tensors alive that were made meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.ops: list[Op] = []
        self.alive = self.peak = self.largest = 0
        self._inside = False  # of a compiled formula
        self._known: dict[int, weakref.ref] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call ``func`` and count it; a view costs nothing."""
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        packet = func._overloadpacket
        if not self._inside:
            formula = flop_registry.get(packet)
            flop = float(formula(*args, **kwargs, out_val=out)) if formula else 0.0
            self._count((args, kwargs), out, flop, free=func.is_view or packet in FREE)
        return out

    def _count(self, inputs: Any, out: Any, flop: float, free: bool) -> None:
        """Count a kernel by what it reads and writes, and the bytes of its results; a ``free`` one is none."""
        read = [value for value in tree_leaves(inputs) if isinstance(value, Tensor)]
        written = [value for value in tree_leaves(out) if isinstance(value, Tensor)]
        for value in written:
            self._hold(value.untyped_storage(), {tensor.untyped_storage()._cdata for tensor in read})
        if written and not free:
            traffic = sum(value.numel() * value.element_size() for value in (*read, *written))
            kind = str(written[0].dtype).removeprefix("torch.")
            self.ops.append(Op(flop, kind if flop else "float32", traffic))

    def as_one(self, formula: Callable[..., Any]) -> Callable[..., Any]:
        """Count a formula as the one kernel that it is compiled to."""

        def call(*args: Any) -> Any:
            self._inside = True
            try:
                out = formula(*args)
            finally:
                self._inside = False
            self._count(args, out, 0.0, free=False)
            return out

        return call

    def _hold(self, storage: torch.UntypedStorage, inputs: set[int]) -> None:
        """Count the bytes of a storage, unless it is an input's, until it is freed."""
        key = storage._cdata
        if key in inputs or key in self._known:
            return
        size = storage.nbytes()
        self._known[key] = weakref.ref(storage, partial(self._freed, key, size))
        self.alive += size
        self.peak, self.largest = max(self.peak, self.alive), max(self.largest, size)

    def _freed(self, key: int, size: int, _: object) -> None:
        self._known.pop(key, None)
        self.alive -= size

    def work(self) -> Work:
        """Return what was counted."""
        return Work(tuple(self.ops), self.peak, self.largest)


def network(
    checkpoint: Checkpoint, task: Task, batch: int, precision: str, quantized: bool, fuse: bool = False
) -> Network:
    """Count a network, block by block, on a batch.

    Args:
        checkpoint: its architecture.
        task: its head and inputs.
        batch: rows.
        precision: of matrix products and convolutions, a name of torch's.
        quantized: whether activations are quantized, with random dropping.
        fuse: whether the formula of that is compiled.
    """
    for target in (checkpoint.model.factory, checkpoint.model.blocks):
        imports.load(target)  # torchvision can't be imported for the first time under a fake mode
    with torch.no_grad(), weightless():
        model = build.architecture(checkpoint, task.head)
    vocabulary = getattr(getattr(model, "config", None), "vocab_size", 0) if task.head.get("head") == "causal-lm" else 0
    parameters = sum(value.numel() for value in model.parameters())
    with FakeTensorMode(allow_non_fake_inputs=True):
        _fold(model)
        blocks = build.cut(checkpoint, model)
        inside = {module for block in blocks for module in block.module.modules()}
        _fill(module for module in model.modules() if module not in inside)
        x = torch.zeros(batch, *task.input_shape, dtype=getattr(torch, task.input_dtype))
        groups: dict[tuple[object, ...], Group] = {}
        shapes: dict[tuple[object, ...], tuple[int, ...]] = {}
        for block in blocks:
            with torch.no_grad():
                x = block.before(x)
            sizes = tuple(value.shape for value in block.module.parameters())
            key = (type(block.module), x.shape, sizes, len(block.sites))
            if key in groups:
                groups[key] = dataclasses.replace(groups[key], count=groups[key].count + 1)
            else:
                _fill(block.module.modules())
                groups[key], shapes[key] = _group(block, x, precision, quantized, fuse)
            x = torch.zeros(shapes[key])
    flop = sum(group.count * sum(op.flop for op in group.forward.ops) for group in groups.values()) / batch
    tokens = task.input_shape[-1] if task.input_dtype == "int64" else 1
    if vocabulary:
        flop += 2 * tokens * vocabulary * x.shape[-1]
    return Network(flop, parameters, vocabulary, tokens, batch, tuple(groups.values()))


def _fill(modules: Iterable[nn.Module]) -> None:
    """Give every parameter and buffer a shape and a type without memory, on the device that autocast knows."""
    known: dict[int, nn.Parameter] = {}
    for module in modules:
        for name, value in module._parameters.items():
            if value is not None:
                filled = nn.Parameter(torch.empty(value.shape), requires_grad=True)
                module._parameters[name] = known.setdefault(id(value), filled)
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = torch.empty(buffer.shape, dtype=buffer.dtype)


def _fold(model: nn.Module) -> None:
    """Leave out batch norms, which are folded before anything is quantized."""
    for module in model.modules():
        for name, child in module.named_children():
            if isinstance(child, nn.BatchNorm2d):
                setattr(module, name, nn.Identity())


def _group(block: Block, x: Tensor, precision: str, quantized: bool, fuse: bool) -> tuple[Group, tuple[int, ...]]:
    """Count one block; return it with the shape of its output."""
    layers = place.weight_layers(block)
    autocast = _autocast(precision)
    with torch.no_grad(), autocast, Tally() as forward:
        target = block(x, None)
    target = target.float()
    with autocast, Tally() as plain:
        kept = block(x, None)
        saved = plain.alive
    del kept
    shape = tuple(target.shape)
    if quantized:
        generator = torch.Generator().manual_seed(0)
        for site in block.sites:
            quantizer = ActivationQuantizer(_grid())
            quantizer.raw_step.requires_grad_(True)
            quantizer.keep_probability, quantizer.generator = 0.5, generator
            quantizer.fuse(fuse)
            place.attach_quantizer(site, quantizer)
    tally = Tally()
    with _not_compiled(tally), tally as learning:
        with autocast:
            prediction = block(x, None)
        ReconstructionError(2.0)(prediction.float(), target).backward()
    weights = tuple(layer.weight.numel() for layer in layers)  # type: ignore[operator]
    parameters = sum(value.numel() for value in block.module.parameters())
    row = max(x[0].numel(), target[0].numel())
    return Group(1, weights, parameters, forward.work(), learning.work(), saved, row), shape


def _autocast(precision: str) -> torch.autocast:
    """Return the context of a precision; TF32 is a way to multiply float32."""
    half = precision in ("bfloat16", "float16")
    return torch.autocast("cpu", getattr(torch, precision) if half else torch.bfloat16, enabled=half)


def _grid() -> Grid:
    """Return some grid of 8 bits; its zero point is a constant that a fake mode can read."""
    return Grid(torch.tensor(0.1), torch.tensor(3.0), 0, 255)


@contextlib.contextmanager
def _not_compiled(tally: Tally) -> Iterator[None]:
    """Have what would be compiled counted as one kernel each."""
    usual, fused._compiled = fused._compiled, tally.as_one  # type: ignore[assignment]
    try:
        yield
    finally:
        fused._compiled = usual


def rounding(
    kind: Callable[..., Rounding],
    options: dict[str, Any],
    by_channel: bool,
    precision: str = "float32",
    fuse: bool = False,
) -> Rounded:
    """Count what a rounding does to a weight each iteration, on a small one.

    Args:
        kind: its class.
        options: of the recipe.
        by_channel: whether the grid is.
        precision: in which the weight is multiplied, a name of torch's.
        fuse: whether its formulas are compiled.
    """
    weight = torch.randn(SIDE, SIDE, generator=torch.Generator().manual_seed(0))
    axis = 0 if by_channel else None
    with Tally() as search:
        grid = initial_grid(weight, Scheme(4, False, axis), "mse", 2.4)
    one = kind(weight, grid, place.Axes(output=0), **options)
    learned = [parameter for group in one.groups().values() for parameter in group]
    one.fuse(fuse)
    with _autocast(precision):
        multiplied = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else torch.float32
    gradients = [torch.ones_like(weight, dtype=multiplied), None]
    tally = Tally()
    with _not_compiled(tally), tally as counted:
        with _autocast(precision):  # what multiplies a weight of another type casts it, and its gradient back
            results = [one(weight).to(multiplied), one.regularizer(10.0)]
        if learned:
            there = [index for index, result in enumerate(results) if result is not None]
            torch.autograd.backward([results[i] for i in there], [gradients[i] for i in there])
    size = weight.numel()
    return Rounded(
        kernels=len(counted.ops),
        traffic=sum(op.traffic for op in counted.ops) / size,
        kept=counted.peak / size,
        learned=sum(parameter.numel() for parameter in learned) / size,
        search=sum(op.traffic for op in search.ops) / size,
    )
