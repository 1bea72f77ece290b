"""Cut a network that the suite doesn't know into blocks, along its ``nn.Sequential``s and repeated modules.

A part is a module that becomes a block. What the network does between two parts (pooling, flattening, embedding) is
replayed: its own ``forward`` runs, with the part before giving what it gave, until the next part is called. So a part
may depend on the part before it and on nothing else, and a cut is taken only if its parts, one after the other, compute
what the network does.
"""

import collections
import contextlib
import copy
import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence, Set
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map_only

from flexround.errors import InputError
from flexround.models import structure
from flexround.models.blocks import Block, Site, identity
from flexround.models.surgery.attach import weight_axes
from flexround.models.tensors import Largest, apart
from flexround.models.trace import (
    Reached,
    Trace,
    first_argument,
    first_output,
    reached,
    standing_in,
    traced,
    with_first,
)
from flexround.tasks.protocol import Inputs

TRIED = 2  # samples on which a cut is tried
CLOSE = 1e-4  # of the largest output: how far the parts may be off the network
WHOLE = ""  # name of the network itself
AT_ONCE = 2**26  # bytes of what goes into and out of blocks, when a cut is compared with the network
HINT = "give blocks=, names of modules that run one after the other, or a function that returns flexround.Blocks"


@dataclasses.dataclass
class _Part:
    """A module that can be a block, and what it was called with and gave for one row."""

    name: str
    module: nn.Module
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    output: Any


class _Call(NamedTuple):
    """One call of a module."""

    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    output: Any


class _Again(InputError):
    """A block's module is called again."""


@dataclasses.dataclass
class _Pass:
    """What a forward pass of one row, (1, ...), showed.

    Attributes:
        row: input of the network.
        parts: the modules that can be blocks, by name, in the order in which they returned: they were called once, and
            their first argument and their output are tensors of floats.
        calls: how often each module was called, by name.
        layers: linears and convolutions in the order of their calls.
        ends: of these the network's first and last layer; None where another kind of layer comes before or after them.
        values: numbers of what each part reads and gives, in the ``trace``.
        weights: number of each layer's weight there.
        trace: of the operations.
    """

    row: Tensor
    parts: dict[str, _Part]
    calls: collections.Counter[str]
    layers: list[nn.Module]
    ends: tuple[nn.Module | None, nn.Module | None]
    values: dict[nn.Module, tuple[int | None, int | None]]
    weights: dict[nn.Module, int]
    trace: Trace

    def follows(self, before: _Part, part: _Part, weights: Set[nn.Module]) -> bool:
        """Whether a part reads what the one before it gives, and neither the input nor the weights of these layers."""
        (_, gives), (reads, _) = self.values[before.module], self.values[part.module]
        free = {number for layer, number in self.weights.items() if layer not in weights}
        return gives is not None and reads is not None and self.trace.roots(reads, gives) <= free

    def behind(self, part: _Part) -> Callable[[Tensor], Tensor]:
        """Return what the network computes of a part's output element by element."""
        gives = self.values[part.module][1]
        return identity if gives is None else self.trace.elementwise_after(gives) or identity


@torch.no_grad()
def automatic(model: nn.Module, x: Tensor) -> list[Block]:
    """Return the blocks of a network, as many as there can be; if there is no cut, a network of images as one block.

    Args:
        model: in evaluation mode; stays as it is.
        x: float (N, ...) or int64 (N, 2, T), inputs on the model's device, of which a few are tried.

    Raises:
        InputError: the network isn't called with a tensor alone, has no linear or convolution, or reads token ids and
            has no cut.
    """
    reads_ids = not x.is_floating_point()
    if reads_ids and structure.stack(model) is not None:
        with contextlib.suppress(InputError):
            calls = _watched(model, x[:1]).layers
            once = [
                dataclasses.replace(block, sites=tuple(site for site in block.sites if calls.count(site.module) == 1))
                for block in structure.blocks(model)
            ]
            check(model, once, Inputs(x[:TRIED]), x.device)
            return once
    seen = _watched(model, x[:1])
    chosen = _possible(model, seen, _children(model, WHOLE))
    if reads_ids:  # a language model's last layer stays as it is, like embeddings (the paper's section 4.3)
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
            else:  # a part needs more than the part before it: all are learned together
                return _blocks(model, seen, [WHOLE], x)
    position = 0
    while position < len(chosen):
        alike = _alike_parts(model, chosen, chosen[position])
        finer = [inner for name in chosen for inner in (_children(model, name) if name in alike else [name])]
        position += 1
        if finer != chosen:
            with contextlib.suppress(InputError):
                blocks, chosen, position = _blocks(model, seen, finer, x), finer, position - 1
    return blocks


def _alike_parts(model: nn.Module, chosen: Sequence[str], name: str) -> list[str]:
    """Return the names of those parts that are cut further together with one; none if it is a unit.

    Modules of one class are cut all or none, so that an inverted residual is a block also where it has no shortcut.
    Sequentials are cut each by itself; one with an activation behind its only layer is a unit.
    """
    module, inner = model.get_submodule(name), [model.get_submodule(child) for child in _children(model, name)]
    if isinstance(module, nn.Sequential):
        return [] if len(inner) == 1 and weight_axes(inner[0]) else [name]
    if _inside(model, name) == [name]:
        return []
    return [other for other in chosen if type(model.get_submodule(other)) is type(module)]


@torch.no_grad()
def named(model: nn.Module, names: Sequence[str], x: Tensor) -> list[Block]:
    """Return modules by name as blocks; InputError if one is unknown, or if they compute something else together."""
    known = [name for name, _ in model.named_modules()]
    if unknown := [name for name in names if name not in known]:
        raise InputError(f"blocks: the model has no module {unknown[0]!r}, but {', '.join(known[1:13])}, ...")
    return _blocks(model, _watched(model, x[:1], names), names, x)


@torch.no_grad()
def check(model: nn.Module, blocks: Sequence[Block], inputs: Inputs, device: torch.device) -> None:
    """Compare blocks with the network on samples: what lies between them is replayed for one row.

    The network runs once, up to its last block. A block's module runs again only where it is given something else.

    Args:
        model: in evaluation mode, on ``device``.
        blocks: found, of modules named, or made by the user's function.
        inputs: samples, and the mask of their padding.
        device: where it is computed.

    Raises:
        InputError: they don't compute the same, with the first rows that differ, or can't be blocks (`differ`).
    """
    x, mask = inputs.x, inputs.mask
    rows, whole, at_once = slice(0, 1), True, TRIED  # one row first: several are perhaps as many as a row has tokens
    while rows.start < len(x):
        with Largest(model) as largest:
            of_rows = x[rows].to(device), None if mask is None else mask[rows].to(device)
            differs, held = differ(model, blocks, *of_rows, whole=whole)
        if differs:
            raise InputError(
                f"{type(model).__name__}: cut into {', '.join(block.name for block in blocks[:6])} it computes "
                f"something else for samples {rows.start} to {rows.stop - 1}: a block reads more than what "
                f"the one before it gives, or what lies between them depends on the row; {HINT}"
            )
        if not whole:
            at_once = max(1, AT_ONCE * len(of_rows[0]) // (held + largest.bytes))
        start, whole = 0 if whole else rows.stop, False
        rows = slice(start, start + at_once)


@torch.no_grad()
def ends(model: nn.Module, x: Tensor) -> tuple[nn.Module | None, nn.Module | None]:
    """Return the network's first and last layer, for the first row of ``x`` (N, ...); None for one of another kind."""
    return _watched(model, x[:1]).ends


def first_input(x: Tensor) -> Tensor:
    """Return what a model of one's own is called with: token ids (N, T) of ids and types (N, 2, T), images as is."""
    return x if x.is_floating_point() else x[:, 0]


def _children(model: nn.Module, name: str) -> list[str]:
    """Return the names of a module's children with weights, or of theirs if they don't run, as lists don't."""
    found = []
    for child, module in model.get_submodule(name).named_children():
        inner = f"{name}.{child}" if name else child
        if type(module).forward is nn.Module.forward:
            found += _children(model, inner)
        elif any(map(weight_axes, module.modules())):
            found.append(inner)
    return found


def _inside(model: nn.Module, name: str) -> list[str]:
    """Return the names of a module's children if it has a list of several modules of one kind inside, else its own."""
    for module in model.get_submodule(name).modules():
        kinds = [type(module.get_submodule(inner)) for inner in _children(module, WHOLE)]
        if isinstance(module, nn.Sequential | nn.ModuleList) and len(kinds) > len(set(kinds)):
            return _children(model, name)
    return [name]


def _possible(model: nn.Module, seen: _Pass, names: Sequence[str]) -> list[str]:
    """Return names of modules, those that can be no blocks replaced by their children if they have some."""
    found = []
    for name in names:
        inner = [] if name in seen.parts else _children(model, name)
        found += _possible(model, seen, inner) if inner else [name]
    return found


def _blocks(model: nn.Module, seen: _Pass, chosen: Sequence[str], x: Tensor) -> list[Block]:
    """Return modules as blocks in the order of their calls; InputError if they don't compute what the model does."""
    network = type(model).__name__
    if not chosen:
        raise InputError(f"{network}: has no parts with linears or convolutions; {HINT}")
    if not seen.layers:
        raise InputError(f"{network}: calls no linear and no 2-dimensional convolution, the layers that are quantized")
    for name in chosen:
        if seen.calls[name] != 1:
            raise InputError(f"{name}: called {seen.calls[name]} times in a forward pass, not once; {HINT}")
        if name not in seen.parts:
            where = f"{network}.{name}".rstrip(".")
            raise InputError(
                f"{where}: is no block: its first argument and its output are not both tensors of floats; {HINT}"
            )
    parts = [part for name, part in seen.parts.items() if name in chosen]
    inside = {layer for part in parts for layer in part.module.modules()}
    for before, part in itertools.pairwise(parts):
        if not seen.follows(before, part, inside):
            raise InputError(
                f"{network}: {part.name} reads more than what {before.name}, which runs before it, gives; {HINT}"
            )
    blocks = [_block(model, seen, parts[: index + 1]) for index in range(len(parts))]
    for rows in (1, TRIED):  # one, too: several are perhaps as many as a row has tokens
        if differ(model, blocks, x[:rows], whole=False)[0]:
            raise InputError(f"{network}: cut into {', '.join(chosen[:6])} it computes something else; {HINT}")
    return blocks


def differ(
    model: nn.Module, blocks: Sequence[Block], x: Tensor, mask: Tensor | None = None, whole: bool = True
) -> tuple[bool, int]:
    """Whether the blocks give for ``x`` (n, ...) neither what the last module gives in the network nor its output.

    Types of tokens and what stands at padding (``mask`` is bool (n, T)) are left out. Blocks whose last module the
    network doesn't call can't be compared. With ``whole`` the network runs to its end, which shows repeated calls.

    Returns:
        Whether they differ, and the bytes of what goes into and out of all blocks.

    Raises:
        InputError: the network runs the module of a block several times, of which one would be learned, or a block
            reads or gives a tensor whose first dimension is not that of the samples.
        RuntimeError: the memory is too small.
    """
    if not x.is_floating_point():
        x = torch.stack([x[:, 0], torch.zeros_like(x[:, 0])], 1)
    calls, output = _called(model, blocks, x, mask, whole)
    held = sum(leaf.nbytes for leaf in tree_leaves([*calls.values()]) if isinstance(leaf, Tensor))
    wanted = first_output(calls[blocks[-1].module].output) if blocks[-1].module in calls else None
    if not isinstance(wanted, Tensor):
        return False, held
    try:
        found = _chained(model, blocks, calls, x, mask)
    except InputError:
        raise
    except Exception as error:  # of any kind, of the model's own code, given what it doesn't expect
        structure.refuse_memory(error)
        return True, held

    def same(of: Any) -> bool:
        if not isinstance(of, Tensor) or found.shape != of.shape:
            return False
        padded = mask is not None and of.shape[:2] == mask.shape
        return apart(found[mask], of[mask]) <= CLOSE if padded else apart(found, of) <= CLOSE

    if not same(wanted) and not whole:
        _, output = _called(model, blocks, x, mask, True)
    return not (same(wanted) or same(first_output(output))), held


def _called(
    model: nn.Module, blocks: Sequence[Block], x: Tensor, mask: Tensor | None, whole: bool
) -> tuple[dict[nn.Module, _Call], Any]:
    """Run the network on ``x`` (n, ...), and if not ``whole`` until its last block returns.

    Return the calls of the blocks' modules, and the network's output; None if it did not come to its end.
    """
    calls: dict[nn.Module, _Call] = {}
    names, network = {block.module: block.name for block in blocks}, type(model).__name__
    known = {} if mask is None else structure.known(model, {"attention_mask": mask})

    def enter(module: nn.Module, arguments: Any, keywords: Any) -> None:
        if module in calls:
            raise _Again(f"{network}: runs its block {names[module]} twice, and one call would be learned; {HINT}")
        given = tree_map_only(Tensor, Tensor.clone, (arguments, keywords))
        calls[module] = _Call(given[0], given[1], None)

    def leave(module: nn.Module, arguments: Any, keywords: Any, output: Any) -> None:
        calls[module] = calls[module]._replace(output=tree_map_only(Tensor, Tensor.clone, output))
        if module is blocks[-1].module and not whole:
            raise Reached

    with contextlib.ExitStack() as hooks:
        for module in names:
            hooks.enter_context(module.register_forward_pre_hook(enter, with_kwargs=True))
            hooks.enter_context(module.register_forward_hook(leave, with_kwargs=True))
        hooks.enter_context(_without_cache(model))
        try:
            return calls, model(first_input(x), **known)
        except Reached:
            return calls, None
        except _Again:
            raise
        except Exception as error:  # of any kind: it is the user's code
            structure.refuse_memory(error)
            if isinstance(error, ValueError) and calls:  # transformers' classifiers know no token of padding
                return calls, None
            raise InputError(
                f"samples: {network} can't take {len(x)} at once, of shape {tuple(x.shape)}: {error}"
            ) from error


def _chained(
    model: nn.Module, blocks: Sequence[Block], calls: Mapping[nn.Module, _Call], x: Tensor, mask: Tensor | None
) -> Tensor:
    """Return what the blocks give, one after the other, for ``x`` (n, ...); a module given the same gives the same.

    Raises:
        InputError: the first dimension of what a block reads or gives is not that of the samples.
    """
    lengths, rows = {}, len(x)
    for block in blocks:
        given = block.before(x)
        with _as_called(block.module, calls.get(block.module)):
            x = block(given, mask)
        lengths[block.name] = len(given), len(x)
    for name, (read, gave) in lengths.items():
        if (read, gave) != (rows, rows):
            raise InputError(
                f"{type(model).__name__}: of {rows} samples its block {name} reads {read} rows and gives {gave}; a "
                f"block needs the samples in the first dimension; {HINT}"
            )
    return x


@contextlib.contextmanager
def _as_called(module: nn.Module, call: _Call | None) -> Iterator[None]:
    """Have a module give what it gave in a call, if it is given the same again."""
    own = module.forward

    def forward(*arguments: Any, **keywords: Any) -> Any:
        if call is not None and _alike((arguments, keywords), (call.arguments, call.keywords)):
            return tree_map_only(Tensor, Tensor.clone, call.output)
        return own(*arguments, **keywords)

    with standing_in(module, forward):
        yield


def _alike(given: Any, seen: Any) -> bool:
    """Whether two calls have the same arguments; a tensor of one row counts for all."""
    (ours, one), (theirs, other) = tree_flatten(given), tree_flatten(seen)
    return one == other and all(map(_equal, ours, theirs))


def _equal(x: Any, y: Any) -> bool:
    if not isinstance(x, Tensor) or not isinstance(y, Tensor):
        return x is y or (type(x) is type(y) and isinstance(x, bool | int | float | str) and x == y)
    fits = x.dtype == y.dtype and x.shape[1:] == y.shape[1:] and x.shape[:1] in (y.shape[:1], (1,))
    return fits and (not y.numel() or apart(x.expand_as(y), y) <= CLOSE)


@contextlib.contextmanager
def _without_cache(model: nn.Module) -> Iterator[None]:
    """Have a model of transformers keep no keys and values: replays would add to those that a part got."""
    configs: list[Any] = [getattr(module, "config", None) for module in model.modules()]
    caching = [config for config in configs if getattr(config, "use_cache", False)]
    for config in caching:
        config.use_cache = False
    try:
        yield
    finally:
        for config in caching:
            config.use_cache = True


def _watched(model: nn.Module, row: Tensor, names: Sequence[str] = ()) -> _Pass:
    """Run the model on one row, (1, ...), and watch its modules that have weights, and those of these names."""
    ran: list[_Part] = []
    order: list[nn.Module | None] = []  # layers, and None for those of another kind, such as embeddings

    def watch(name: str) -> Callable[..., None]:
        def keep(module: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any], output: Any) -> None:
            kept = _as_many(output, 1, None)  # copied, because the network may write on it
            ran.append(_Part(name, module, arguments, keywords, kept))

        return keep

    watched = {
        name: module
        for name, module in model.named_modules(remove_duplicate=False)
        if name in names or any(map(weight_axes, module.modules()))
    }
    with contextlib.ExitStack() as hooks:
        hooks.enter_context(_without_cache(model))
        held = {layer: layer.weight for layer in model.modules() if weight_axes(layer)}
        trace = traced(model, first_input(row), set(watched.values()), held.values())  # type: ignore[arg-type]
        for name, module in watched.items():
            hooks.enter_context(module.register_forward_hook(watch(name), with_kwargs=True))
        for layer in filter(weight_axes, model.modules()):
            hooks.enter_context(layer.register_forward_pre_hook(lambda layer, _: order.append(layer)))
        for module in model.modules():
            matrices = any(value.ndim > 1 for value in module.parameters(recurse=False))
            if matrices and not any(map(weight_axes, module.modules())):
                hooks.enter_context(module.register_forward_hook(lambda *_: order.append(None)))
        model(first_input(row))
    calls = collections.Counter(part.name for part in ran)
    ends = [(first_argument(part.arguments, part.keywords), first_output(part.output)) for part in ran]
    floats = [all(isinstance(end, Tensor) and end.is_floating_point() for end in of_one) for of_one in ends]
    parts = {part.name: part for part, fits in zip(ran, floats, strict=True) if fits and calls[part.name] == 1}
    layers = [layer for layer in order if layer is not None]
    values = {call.module: (call.reads, call.writes) for call in trace.calls}
    weights = dict(zip(held, trace.weights, strict=True))
    trace.calls.clear()
    return _Pass(row, parts, calls, layers, (order[0], order[-1]) if order else (None, None), values, weights, trace)


def _block(model: nn.Module, seen: _Pass, parts: Sequence[_Part]) -> Block:
    """Return the last of these parts as a block; the input of each layer is quantized, but for the network's first."""
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
    """Run the model's own code until the last of these parts is called; return the input of that part.

    Args:
        model: the network.
        parts: in the order of their calls.
        row: an input of the network, (1, ...), for everything that runs before the last part but one.
        x: the output (N, ...) of the last part but one; if there is none, the network's input. It stays as it is, also
            if the network writes on it, as ``x += y`` does.
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
    """Return what was seen for one row as if it had been for ``rows``; ``first``, if given, is its first tensor."""
    if isinstance(value, MutableMapping):
        made = copy.copy(value)
        for position, (key, item) in enumerate(value.items()):
            made[key] = _as_many(item, rows, None if position else first)
        return made
    if isinstance(value, tuple):
        items = [_as_many(item, rows, None if position else first) for position, item in enumerate(value)]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    if first is not None:
        return first
    return (
        value.expand(rows, *value.shape[1:]).clone() if isinstance(value, Tensor) and value.shape[:1] == (1,) else value
    )
