"""Cut a network into blocks: by its adapter, or along its ``nn.Sequential``s and repeated modules.

A part is a module that becomes a block. The network's own ``forward`` computes the operations between two parts
(pooling, flattening, embedding): it runs up to the next part, while earlier parts return their known outputs. So a part
may depend only on the part before it. A cut is accepted only if its parts, run one after the other, compute the same as
the network.
"""

import collections
import contextlib
import dataclasses
import itertools
import logging
from collections.abc import Callable, Container, Sequence, Set
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from flexround import imports
from flexround.errors import InputError
from flexround.library.block_check import HINT, TRIED, check, first_input, without_cache
from flexround.models import structure
from flexround.models.blocks import Block, Site, identity
from flexround.models.surgery.attach import weight_axes
from flexround.models.trace import Trace, first_argument, first_output, reached, traced, with_first
from flexround.tasks.protocol import Inputs

log = logging.getLogger(__name__)
WHOLE = ""  # name of the network itself
Cut = Callable[[nn.Module], Sequence[Block]]


@dataclasses.dataclass
class _Part:
    """A module that can be a block, with its single call for the tried row.

    ``reads`` and ``gives`` number its first argument and first output in the trace; None outside the trace.
    """

    name: str
    module: nn.Module
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    output: Any
    reads: int | None
    gives: int | None


@dataclasses.dataclass
class _Pass:
    """The record of one forward pass with one row, (1, ...).

    Attributes:
        row: input of the network.
        parts: possible blocks by name, in the order in which they returned: modules called once, whose first argument
            and output are float tensors.
        layers: linears and convolutions in the order of their calls; None replaces a layer of another kind.
        weights: number of each layer's weight in the trace.
        trace: the traced operations.
    """

    row: Tensor
    parts: dict[str, _Part]
    layers: list[nn.Module | None]
    weights: dict[nn.Module, int]
    trace: Trace

    @property
    def ends(self) -> tuple[nn.Module | None, nn.Module | None]:
        """The network's first and last layer; None for a layer of another kind."""
        return (self.layers[0], self.layers[-1]) if self.layers else (None, None)

    def follows(self, before: _Part, part: _Part, weights: Set[nn.Module]) -> bool:
        """Whether a part reads the output of the part before it, and neither the input nor weights of these layers."""
        if before.gives is None or part.reads is None:
            return False
        free = {number for layer, number in self.weights.items() if layer not in weights}
        return self.trace.roots(part.reads, before.gives) <= free

    def behind(self, part: _Part) -> Callable[[Tensor], Tensor]:
        """Return the elementwise function that the network applies to a part's output."""
        return identity if part.gives is None else self.trace.elementwise_after(part.gives) or identity


@torch.no_grad()
def adapted(model: nn.Module, adapter: str | None, inputs: Inputs, device: torch.device) -> list[Block]:
    """Return the blocks of an adapter; none without adapter, or if the blocks don't compute the same as the model.

    A subclass with its own ``forward`` or with exchanged modules computes something else.
    """
    if adapter is None:
        return []
    try:
        found: list[Block] = imports.load(adapter)(model)
        check(model, found, inputs, device)
    except Exception as error:  # of any kind: the adapter looks for missing modules
        structure.refuse_memory(error)
        log.info("%s: is not cut as its architecture is: %s: %s", type(model).__name__, type(error).__name__, error)
        return []
    return found


@torch.no_grad()
def cut(model: nn.Module, blocks: Sequence[str] | Cut | None, inputs: Inputs, device: torch.device) -> list[Block]:
    """Return the blocks of a model: modules with the given names, a function's blocks, or an automatic cut.

    Raises:
        InputError: no block is found, names don't match the model, or the blocks can't take the samples.
    """
    x = inputs.x[:TRIED].to(device)
    if callable(blocks):
        found = list(blocks(model))
    else:
        found = automatic(model, x) if blocks is None else named(model, blocks, x)
        log.info("%s: cut into %d blocks: %s", type(model).__name__, len(found), ", ".join(b.name for b in found))
    if callable(blocks) or inputs.mask is not None:
        check(model, found, inputs, device)
    return found


@torch.no_grad()
def automatic(model: nn.Module, x: Tensor) -> list[Block]:
    """Return as many blocks of a network as possible; a network of images without a cut is one block.

    Args:
        model: in evaluation mode; it stays unchanged.
        x: float (N, ...) or int64 (N, 2, T), inputs on the model's device; only a few samples are tried.

    Raises:
        InputError: the network doesn't take a single tensor, has no linear or convolution, or reads token ids and has
            no cut.
    """
    seen, reads_ids = _watched(model, x[:1]), not x.is_floating_point()
    if reads_ids:
        with contextlib.suppress(InputError):
            once = {layer for layer in seen.layers if layer is not None and seen.layers.count(layer) == 1}
            layers = with_sites(structure.blocks(model), once)
            check(model, layers, Inputs(x), x.device)
            return layers
    chosen = _possible(model, seen, _children(model, WHOLE))
    if reads_ids:  # a language model's last layer stays unquantized, like embeddings (the paper's section 4.3)
        last = [name for name in seen.parts if name in chosen][-1:]
        chosen = [name for name in chosen if name not in last or not weight_axes(model.get_submodule(name))]
    while True:
        try:
            blocks = _blocks(model, seen, chosen, x)
            break
        except InputError:
            finer = [inner for name in chosen for inner in _inside(model, name)]
            if len(finer) > len(chosen):
                chosen = _possible(model, seen, finer)
            elif reads_ids:
                raise
            else:  # a part needs more than the previous part: learn all parts together
                return _blocks(model, seen, [WHOLE], x)
    position, tried = 0, [chosen]
    while position < len(chosen):
        alike = _alike_parts(model, chosen, chosen[position])
        finer = [inner for name in chosen for inner in (_children(model, name) if name in alike else [name])]
        position += 1
        if finer not in tried:
            tried.append(finer)
            with contextlib.suppress(InputError):
                blocks, chosen, position = _blocks(model, seen, finer, x), finer, position - 1
    return blocks


def with_sites(blocks: Sequence[Block], layers: Container[nn.Module]) -> list[Block]:
    """Return blocks with only the sites of these layers."""
    kept = [tuple(site for site in block.sites if site.module in layers) for block in blocks]
    return [dataclasses.replace(block, sites=sites) for block, sites in zip(blocks, kept, strict=True)]


def _alike_parts(model: nn.Module, chosen: Sequence[str], name: str) -> list[str]:
    """Return the names of all parts that are cut further together with part ``name``; none if the part is a unit.

    All modules of a class are cut, or none: an inverted residual is a block even without a shortcut. Each sequential is
    cut by itself; a sequential with an activation behind its only layer is a unit.
    """
    module, inner = model.get_submodule(name), [model.get_submodule(child) for child in _children(model, name)]
    if isinstance(module, nn.Sequential):
        return [] if len(inner) == 1 and weight_axes(inner[0]) else [name]
    if _inside(model, name) == [name]:
        return []
    return [other for other in chosen if type(model.get_submodule(other)) is type(module)]


@torch.no_grad()
def named(model: nn.Module, names: Sequence[str], x: Tensor) -> list[Block]:
    """Return the named modules as blocks; InputError if a module can't be a block, or the output differs."""
    return _blocks(model, _watched(model, x[:1]), names, x)


@torch.no_grad()
def ends(model: nn.Module, x: Tensor) -> tuple[nn.Module | None, nn.Module | None]:
    """Return the first and last layer called for the first row of ``x`` (N, ...); None for a layer of another kind."""
    return _watched(model, x[:1]).ends


def _children(model: nn.Module, name: str) -> list[str]:
    """Return the names of a module's children with weights; children that don't run, such as lists, yield their own."""
    found = []
    for child, module in model.get_submodule(name).named_children():
        inner = f"{name}.{child}" if name else child
        if type(module).forward is nn.Module.forward:
            found += _children(model, inner)
        elif any(map(weight_axes, module.modules())):
            found.append(inner)
    return found


def _inside(model: nn.Module, name: str) -> list[str]:
    """Return the names of a module's children if it contains a list of several modules of one kind, else its name."""
    for module in model.get_submodule(name).modules():
        kinds = [type(module.get_submodule(inner)) for inner in _children(module, WHOLE)]
        if isinstance(module, nn.Sequential | nn.ModuleList) and len(kinds) > len(set(kinds)):
            return _children(model, name)
    return [name]


def _possible(model: nn.Module, seen: _Pass, names: Sequence[str]) -> list[str]:
    """Return names of modules; a module that can't be a block is replaced by its children, if it has any."""
    found = []
    for name in names:
        inner = [] if name in seen.parts else _children(model, name)
        found += _possible(model, seen, inner) if inner else [name]
    return found


def _blocks(model: nn.Module, seen: _Pass, chosen: Sequence[str], x: Tensor) -> list[Block]:
    """Return modules as blocks in the order of their calls; InputError if their output differs from the model's."""
    network = type(model).__name__
    if not chosen or not any(seen.layers):
        raise InputError(f"{network}: calls no linear and no 2-dimensional convolution, the layers that are quantized")
    for name in chosen:
        if name not in seen.parts:
            raise InputError(
                f"{name or network}: is no block: a block is a module that is called once, and its first argument and "
                f"its output are tensors of floats; {HINT}"
            )
    parts = [part for name, part in seen.parts.items() if name in chosen]
    inside = {layer for part in parts for layer in part.module.modules()}
    for before, part in itertools.pairwise(parts):
        if not seen.follows(before, part, inside):
            raise InputError(
                f"{network}: {part.name} reads more than the output of {before.name}, which runs before it; {HINT}"
            )
    blocks = [_block(model, seen, parts[: index + 1]) for index in range(len(parts))]
    check(model, blocks, Inputs(x), x.device)
    return blocks


def _watched(model: nn.Module, row: Tensor) -> _Pass:
    """Run the model on one row, (1, ...), and watch its modules."""
    ran: list[tuple[nn.Module, tuple[Any, ...], dict[str, Any], Any]] = []

    def keep(module: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any], output: Any) -> None:
        ran.append((module, arguments, keywords, _as_many(output, 1, None)))  # a copy: the network may overwrite it

    with contextlib.ExitStack() as hooks:
        hooks.enter_context(without_cache(model))
        held = {layer: layer.weight for layer in model.modules() if weight_axes(layer)}
        trace = traced(model, first_input(row), set(model.modules()), held.values())  # type: ignore[arg-type]
        for module in model.modules():
            hooks.enter_context(module.register_forward_hook(keep, with_kwargs=True))
        model(first_input(row))
    values = {call.module: (call.reads, call.writes) for call in trace.calls}
    trace.calls.clear()
    called, parts = collections.Counter(module for module, *_ in ran), dict[str, _Part]()
    names = collections.defaultdict[nn.Module, list[str]](list)
    for name, module in model.named_modules(remove_duplicate=False):
        names[module].append(name)
    for module, arguments, keywords, output in ran:
        ends = first_argument(arguments, keywords), first_output(output)
        if called[module] == 1 and all(isinstance(end, Tensor) and end.is_floating_point() for end in ends):
            for name in names[module]:
                parts[name] = _Part(name, module, arguments, keywords, output, *values[module])
    layers = [module if weight_axes(module) else None for module, *_ in ran if weight_axes(module) or _other(module)]
    return _Pass(row, parts, layers, dict(zip(held, trace.weights, strict=True)), trace)


def _other(module: nn.Module) -> bool:
    """Whether a module multiplies by a matrix and is no linear or convolution, such as an embedding."""
    matrices = any(value.ndim > 1 for value in module.parameters(recurse=False))
    return matrices and not any(map(weight_axes, module.modules()))


def _block(model: nn.Module, seen: _Pass, parts: Sequence[_Part]) -> Block:
    """Return the last part as a block; the input of each layer except the network's first is quantized."""
    part = parts[-1]
    layers = [module for module in part.module.modules() if weight_axes(module) and seen.layers.count(module) == 1]

    row = seen.row

    def before(x: Tensor) -> Tensor:
        return _replayed(model, parts, row.to(x.device), x)

    def call(module: nn.Module, x: Tensor, mask: Tensor | None) -> Tensor:
        arguments, keywords = with_first(part.arguments, part.keywords, x)
        return first_output(module(*arguments, **keywords))

    sites = tuple(Site(layer, "input") for layer in layers if layer is not seen.ends[0])
    return Block(part.name or "network", part.module, sites, before, call, seen.behind(part), False, keeps_strides=True)


def _replayed(model: nn.Module, parts: Sequence[_Part], row: Tensor, x: Tensor) -> Tensor:
    """Run the model's own code until it calls the last part; return the last part's input.

    Args:
        model: the network.
        parts: parts in the order of their calls.
        row: an input of the network, (1, ...), used before the second last part.
        x: the output (N, ...) of the second last part, or the network's input if the list has one part. It stays
            unchanged even if the network overwrites it, as ``x += y`` does.
    """
    *before, last = parts
    x = x.clone()
    replaced: dict[nn.Module, Callable[..., Any]] = {}
    for part in before:
        given = _as_many(part.output, len(x), x if part is before[-1] else None)
        replaced[part.module] = lambda *_, given=given, **__: given
    start = first_input(_as_many(row, len(x), None) if before else x)
    return first_argument(*reached(last.module, lambda: model(start), replaced))


def _as_many(value: Any, rows: int, first: Tensor | None) -> Any:
    """Repeat the arguments or output of one row ``rows`` times; ``first``, if given, replaces the first tensor."""
    leaves, form = tree_flatten(value)
    single = [isinstance(leaf, Tensor) and leaf.shape[:1] == (1,) for leaf in leaves]
    pairs = zip(leaves, single, strict=True)
    many = [leaf.expand(rows, *leaf.shape[1:]).clone() if one else leaf for leaf, one in pairs]
    return tree_unflatten(many if first is None else [first, *many[1:]], form)
