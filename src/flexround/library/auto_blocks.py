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
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from flexround.errors import InputError
from flexround.models import structure
from flexround.models.blocks import Block, Site
from flexround.models.replay import first_argument, first_output, reached, with_first
from flexround.models.surgery.attach import weight_axes
from flexround.reconstruct.cache import slices
from flexround.tasks.protocol import Inputs

TRIED = 2  # samples on which a cut is tried
CLOSE = 1e-4  # of the largest output: how far the parts may be off the network
WHOLE = ""  # name of the network itself
ROWS = 32  # of the samples that run at once when a cut is compared with the network
HINT = "give blocks=, names of modules that run one after the other, or a function that returns flexround.Blocks"


@dataclasses.dataclass
class _Part:
    """A module that can be a block, and what it was called with and gave for one row."""

    name: str
    module: nn.Module
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    output: Any


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
    """

    row: Tensor
    parts: dict[str, _Part]
    calls: collections.Counter[str]
    layers: list[nn.Module]
    ends: tuple[nn.Module | None, nn.Module | None]


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
        name = chosen[position]
        finer = [*chosen[:position], *_children(model, name), *chosen[position + 1 :]]
        position += 1
        if isinstance(model.get_submodule(name), nn.Sequential) or _inside(model, name) != [name]:
            with contextlib.suppress(InputError):
                blocks, chosen, position = _blocks(model, seen, finer, x), finer, position - 1
    return blocks


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

    Args:
        model: in evaluation mode, on ``device``.
        blocks: found, of modules named, or made by the user's function.
        inputs: samples, and the mask of their padding.
        device: where it is computed.

    Raises:
        InputError: they don't compute the same, with the first rows that differ, or can't be blocks (`differ`).
    """
    x, mask = inputs.x, inputs.mask
    for rows in (slice(1), *slices(len(x), ROWS)):  # one, too: several are perhaps as many as a row has tokens
        if differ(model, blocks, x[rows].to(device), None if mask is None else mask[rows].to(device)):
            raise InputError(
                f"{type(model).__name__}: cut into {', '.join(block.name for block in blocks[:6])} it computes "
                f"something else for samples {rows.start or 0} to {rows.stop - 1}: a block reads more than what "
                f"the one before it gives, or what lies between them depends on the row; {HINT}"
            )


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
    for name in chosen:
        if seen.calls[name] != 1:
            raise InputError(f"{name}: called {seen.calls[name]} times in a forward pass, not once; {HINT}")
        if name not in seen.parts:
            where = f"{network}.{name}".rstrip(".")
            raise InputError(
                f"{where}: is no block: its first argument and its output are not both tensors of floats; {HINT}"
            )
    parts = [part for name, part in seen.parts.items() if name in chosen]
    for index in range(1, len(parts)):
        if _reads_earlier(model, parts[: index + 1], seen.row):
            raise InputError(
                f"{network}: {parts[index].name} reads more than what {parts[index - 1].name}, which runs before it, "
                f"gives; {HINT}"
            )
    blocks = [_block(model, seen, parts[: index + 1]) for index in range(len(parts))]
    check(model, blocks, Inputs(x[:TRIED]), x.device)
    return blocks


def _reads_earlier(model: nn.Module, parts: Sequence[_Part], row: Tensor) -> bool:
    """Whether the last of these parts reads the outputs of parts before the last but one, or the network's input.

    Nor may what lies before it read a weight of the parts before: it would be the quantized one in full precision, too.
    What it should not read is NaN: networks whose outputs hardly differ between inputs would hide it otherwise.
    """
    x = first_output(parts[-2].output)
    nothing = torch.full_like(row, torch.nan) if row.is_floating_point() else row
    try:
        with without_weights([part.module for part in parts[:-1]]):
            found = _replayed(model, parts, nothing, x, torch.nan)
    except Exception as error:  # of any kind, of the model's own code, given what it doesn't expect
        structure.refuse_memory(error)
        return True
    return bool(found.isnan().any()) and not x.isnan().any()


@contextlib.contextmanager
def without_weights(modules: Sequence[nn.Module]) -> Iterator[None]:
    """Have the weights of the linears and convolutions in these modules be NaN inside."""
    layers = [layer for module in modules for layer in module.modules() if weight_axes(layer)]
    weights = [layer.weight for layer in layers if isinstance(layer.weight, Tensor)]
    kept = {weight: weight.data for weight in weights}
    try:
        for weight, values in kept.items():
            weight.data = torch.full_like(values, torch.nan)
        yield
    finally:
        for weight, values in kept.items():
            weight.data = values


def differ(model: nn.Module, blocks: Sequence[Block], x: Tensor, mask: Tensor | None = None) -> bool:
    """Whether the blocks give for ``x`` (n, ...) neither what the last module gives in the network nor its output.

    Types of tokens and what stands at padding (``mask`` is bool (n, T)) are left out, as is what follows the last
    module if it can't take several rows. A last module that the network doesn't call can't be compared.

    Raises:
        InputError: the network runs the module of a block several times, of which one would be learned, or a block
            reads or gives a tensor whose first dimension is not that of the samples.
        RuntimeError: the memory is too small.
    """
    if not x.is_floating_point():
        x = torch.stack([x[:, 0], torch.zeros_like(x[:, 0])], 1)
    caught: list[Any] = []
    calls: collections.Counter[nn.Module] = collections.Counter()
    with contextlib.ExitStack() as hooks:
        hooks.enter_context(blocks[-1].module.register_forward_hook(lambda _, __, output: caught.append(output)))
        for module in {block.module for block in blocks}:
            hooks.enter_context(module.register_forward_hook(lambda module, *_: calls.update([module])))
        try:
            output = model(first_input(x), **({} if mask is None else structure.known(model, {"attention_mask": mask})))
        except Exception as error:  # of any kind: it is the user's code
            structure.refuse_memory(error)
            if not isinstance(error, ValueError) or not caught:  # transformers' classifiers know no token of padding
                raise InputError(
                    f"samples: {type(model).__name__} can't take {len(x)} at once, of shape {tuple(x.shape)}: {error}"
                ) from error
            output = None
    if often := [block for block in blocks if calls[block.module] > 1]:
        raise InputError(
            f"{type(model).__name__}: the network runs its block {often[0].name} {calls[often[0].module]} times, and "
            f"only one call would be learned; {HINT}"
        )
    wanted = [of for of in (*map(first_output, caught[:1]), first_output(output)) if isinstance(of, Tensor)]
    if not caught or not wanted:
        return False
    found, lengths = x, {}
    try:
        for block in blocks:
            given = block.before(found)
            found = block(given, mask)
            lengths[block.name] = len(given), len(found)
    except Exception as error:  # of any kind, of the model's own code, given what it doesn't expect
        structure.refuse_memory(error)
        return True
    for name, (read_rows, given_rows) in lengths.items():
        if (read_rows, given_rows) != (len(x), len(x)):
            raise InputError(
                f"{type(model).__name__}: of {len(x)} samples its block {name} reads {read_rows} rows and gives "
                f"{given_rows}; a block needs the samples in the first dimension; {HINT}"
            )

    def read(value: Tensor) -> Tensor:
        return value if mask is None or value.shape[:2] != mask.shape else value[mask]

    return all(found.shape != of.shape or apart(read(found), read(of)) > CLOSE for of in wanted)


def apart(x: Tensor, y: Tensor) -> float:
    """Return the largest difference between two outputs of one shape and any type, of the largest of ``y``.

    What is equal, NaN or infinite in both, is no difference; what is so in one alone is an infinite one.
    """
    x, y = x.double(), y.double()
    same = (x == y) | (x.isnan() & y.isnan())
    largest = y.nan_to_num(0, 0, 0).abs().max().clamp_min(torch.finfo(y.dtype).tiny)
    return float(((x - y).abs().masked_fill(same, 0) / largest).nan_to_num(torch.inf).max())


def outputs_apart(found: Any, wanted: Any) -> float:
    """Return the largest difference (`apart`) of the tensors in two outputs of a network.

    Tensors that are not floats, such as classes, count only if there are no others: they jump where values are close.
    """
    ours, theirs = tensors(found), tensors(wanted)
    if [x.shape for x in ours] != [y.shape for y in theirs]:
        return torch.inf
    pairs = [(x, y) for x, y in zip(ours, theirs, strict=True) if x.numel()]
    return max((apart(x, y) for x, y in [pair for pair in pairs if pair[1].is_floating_point()] or pairs), default=0.0)


def tensors(output: Any) -> list[Tensor]:
    """Return the tensors in an output of any kind: a tuple, list, mapping or dataclass of such, or a tensor."""
    if isinstance(output, Tensor):
        return [output]
    if isinstance(output, Mapping):
        inner = [*output.values()]
    elif dataclasses.is_dataclass(output):
        inner = [getattr(output, field.name) for field in dataclasses.fields(output)]
    else:
        inner = [*output] if isinstance(output, tuple | list) else []
    return [tensor for value in inner for tensor in tensors(value)]


def _watched(model: nn.Module, row: Tensor, names: Sequence[str] = ()) -> _Pass:
    """Run the model on one row, (1, ...), and watch its modules that have weights, and those of these names."""
    ran: list[_Part] = []
    order: list[nn.Module | None] = []  # layers, and None for those of another kind, such as embeddings

    def watch(name: str) -> Callable[..., None]:
        def keep(module: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any], output: Any) -> None:
            kept = _as_many(output, 1, None)  # copied, because the network may write on it
            ran.append(_Part(name, module, arguments, keywords, kept))

        return keep

    with contextlib.ExitStack() as hooks:
        for name, module in model.named_modules(remove_duplicate=False):
            if name in names or any(map(weight_axes, module.modules())):
                hooks.enter_context(module.register_forward_hook(watch(name), with_kwargs=True))
        for layer in filter(weight_axes, model.modules()):
            hooks.enter_context(layer.register_forward_pre_hook(lambda layer, _: order.append(layer)))
        for module in model.modules():
            matrices = any(value.ndim > 1 for value in module.parameters(recurse=False))
            if matrices and not any(map(weight_axes, module.modules())):
                hooks.enter_context(module.register_forward_hook(lambda *_: order.append(None)))
            config: Any = getattr(module, "config", None)
            if getattr(config, "use_cache", False):  # each replay would add keys and values to a cache that a part got
                hooks.callback(setattr, config, "use_cache", True)
                config.use_cache = False
        model(first_input(row))
    calls = collections.Counter(part.name for part in ran)
    ends = [(first_argument(part.arguments, part.keywords), first_output(part.output)) for part in ran]
    floats = [all(isinstance(end, Tensor) and end.is_floating_point() for end in of_one) for of_one in ends]
    parts = {part.name: part for part, fits in zip(ran, floats, strict=True) if fits and calls[part.name] == 1}
    layers = [layer for layer in order if layer is not None]
    return _Pass(row, parts, calls, layers, (order[0], order[-1]) if order else (None, None))


def _block(model: nn.Module, seen: _Pass, parts: Sequence[_Part]) -> Block:
    """Return the last of these parts as a block; the input of each layer is quantized, but for the network's first."""
    part = parts[-1]
    layers = [module for module in part.module.modules() if weight_axes(module) and seen.layers.count(module) == 1]

    def before(x: Tensor) -> Tensor:
        return _replayed(model, parts, seen.row.to(x.device), x)

    def call(module: nn.Module, x: Tensor, mask: Tensor | None) -> Tensor:
        arguments, keywords = with_first(part.arguments, part.keywords, x)
        return first_output(module(*arguments, **keywords))

    sites = tuple(Site(layer, "input") for layer in layers if layer is not seen.ends[0])
    return Block(part.name or "network", part.module, sites, before, call, any_length=False)


def _replayed(model: nn.Module, parts: Sequence[_Part], row: Tensor, x: Tensor, earlier: float | None = None) -> Tensor:
    """Run the model's own code until the last of these parts is called; return the input of that part.

    Args:
        model: the network.
        parts: in the order of their calls.
        row: an input of the network, (1, ...), for everything that runs before the last part but one.
        x: the output (N, ...) of the last part but one; if there is none, the network's input. It stays as it is, also
            if the network writes on it, as ``x += y`` does.
        earlier: what all other outputs are, in the place of those for the row.
    """
    *before, last = parts
    x = x.clone()
    replaced: dict[nn.Module, Callable[..., Any]] = {}
    for part in before:
        seen = None if earlier is None else torch.full_like(first_output(part.output), earlier)
        given = _as_many(part.output, len(x), x if part is before[-1] else seen)
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
