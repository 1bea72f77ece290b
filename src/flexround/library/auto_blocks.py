"""Cut a network that the suite doesn't know into blocks, along its ``nn.Sequential``s and repeated modules.

A part is a module that becomes a block. What the network does between two parts (pooling, flattening, embedding) is
replayed: its own ``forward`` runs, with the part before giving what it gave, until the next part is called. So a part
may depend on the part before it and on nothing else, and a cut is taken only if its parts, one after the other, compute
what the network does.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from flexround.errors import InputError
from flexround.models import blocks as protocol
from flexround.models.blocks import Block, Site
from flexround.models.surgery.attach import weight_axes

TRIED = 2  # samples on which a cut is tried
CLOSE = 1e-4  # of the largest output: how far the parts may be off the network
WHOLE = ""  # name of the network itself
ROWS = 32  # of the samples that run at once when a cut is compared with the network
HINT = "give blocks=, names of modules that run one after the other, or a function that returns flexround.Blocks"
DECODERS = "decoders of LLaMA's structure, such as Qwen2, Qwen3 and Mistral, take flexround.models.llama.blocks"


class _Reached(Exception):
    """The part that was waited for is called."""


@dataclasses.dataclass
class _Part:
    """A module that becomes a block, and what it was called with and gave for one row."""

    name: str
    module: nn.Module
    extra: tuple[Any, ...] = ()
    keywords: dict[str, Any] = dataclasses.field(default_factory=dict)
    output: Any = None


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
    chosen = _children("", model)
    try:
        if not x.is_floating_point():
            chosen = _without_head(chosen, _watched(model, chosen, x[:1])[0])
        blocks = _blocks(model, chosen, x)
    except InputError as error:  # a part needs more than the part before it: all are learned together
        if not x.is_floating_point():
            raise InputError(f"{error}; {DECODERS}") from error
        return _blocks(model, [(WHOLE, model)], x)
    position = 0
    while position < len(chosen):
        name, module = chosen[position]
        finer = [*chosen[:position], *_children(f"{name}.", module), *chosen[position + 1 :]]
        position += 1
        if isinstance(module, nn.Sequential) or any(map(_repeats, module.modules())):
            with contextlib.suppress(InputError):
                blocks, chosen, position = _blocks(model, finer, x), finer, position - 1
    return blocks


@torch.no_grad()
def named(model: nn.Module, names: Sequence[str], x: Tensor) -> list[Block]:
    """Return the modules of these names as blocks; arguments as of :func:`automatic`.

    Raises:
        InputError: an unknown name, or the modules don't compute what the network does.
    """
    known = dict(model.named_modules())
    if unknown := [name for name in names if name not in known]:
        raise InputError(f"blocks: the model has no module {unknown[0]!r}, but {', '.join(list(known)[1:13])}, ...")
    return _blocks(model, [(name, known[name]) for name in names], x)


@torch.no_grad()
def check(model: nn.Module, blocks: Sequence[Block], x: Tensor, device: torch.device) -> None:
    """Compare the blocks with the network on every sample: glue that depends on the row is replayed for one row.

    Args:
        model: in evaluation mode, on ``device``.
        blocks: found, of modules named, or made by the user's function.
        x: float (N, ...) or int64 (N, 2, T).
        device: where it is computed.

    Raises:
        InputError: they don't compute the same, with the first rows that differ.
    """
    for start in range(0, len(x), ROWS):
        if _differs(model, blocks, x[start : start + ROWS].to(device)):
            raise InputError(
                f"{type(model).__name__}: cut into {', '.join(block.name for block in blocks[:6])} it computes "
                f"something else for samples {start} to {min(start + ROWS, len(x)) - 1}: what lies between the blocks "
                f"depends on the row; {HINT}"
            )


@torch.no_grad()
def called(model: nn.Module, x: Tensor) -> list[nn.Module]:
    """Return the layers with weights in the order of their calls, for the first row of ``x`` (N, ...)."""
    return _watched(model, [], x[:1])[1]


def first_input(x: Tensor) -> Tensor:
    """Return what a model of one's own is called with: token ids (N, T) of ids and types (N, 2, T), images as is."""
    return x if x.is_floating_point() else x[:, 0]


def _children(prefix: str, module: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return the children that have layers with weights, or theirs if they don't run, as lists of modules don't."""
    found = []
    for name, child in module.named_children():
        if type(child).forward is nn.Module.forward:
            found += _children(f"{prefix}{name}.", child)
        elif any(map(weight_axes, child.modules())):
            found.append((f"{prefix}{name}", child))
    return found


def _without_head(chosen: Sequence[tuple[str, nn.Module]], parts: Sequence["_Part"]) -> list[tuple[str, nn.Module]]:
    """Leave out a language model's last layer: like embeddings it stays as it is (the paper's section 4.3)."""
    head = [part.module for part in parts[-1:] if weight_axes(part.module)]
    return [(name, module) for name, module in chosen if module not in head]


def _repeats(module: nn.Module) -> bool:
    """Whether a module is a list of modules of which several are of one kind."""
    kinds = [type(child) for _, child in _children("", module)]
    return isinstance(module, nn.Sequential | nn.ModuleList) and len(kinds) > len(set(kinds))


def _blocks(model: nn.Module, chosen: Sequence[tuple[str, nn.Module]], x: Tensor) -> list[Block]:
    """Return the chosen modules as blocks in the order of their calls.

    Raises:
        InputError: there is none, one isn't called once, or together they don't compute what the model does.
    """
    if not chosen:
        raise InputError(f"{type(model).__name__}: has no parts with linears or convolutions; {HINT}")
    parts, calls = _watched(model, chosen, x[:1])
    blocks = [_block(model, parts, index, calls, x[:1]) for index in range(len(parts))]
    if _differs(model, blocks, x[:TRIED]):
        raise InputError(
            f"{type(model).__name__}: {', '.join(part.name for part in parts[:6])}{', ...' if len(parts) > 6 else ''} "
            f"one after the other don't compute what the network does; {HINT}"
        )
    return blocks


def _differs(model: nn.Module, blocks: Sequence[Block], x: Tensor) -> bool:
    """Whether the blocks give for ``x`` (n, ...) neither what the last module gives in the network nor its output.

    Types of tokens are left out, and a last module that the network doesn't call can't be compared.
    """
    if not x.is_floating_point():
        x = torch.stack([x[:, 0], torch.zeros_like(x[:, 0])], 1)
    caught: list[Any] = []
    with blocks[-1].module.register_forward_hook(lambda _, __, output: caught.append(output)):
        output = model(first_input(x))
    wanted = [of for of in (*map(_first, caught[:1]), _first(output)) if isinstance(of, Tensor)]
    if not caught or not wanted:
        return False
    try:
        found = protocol.run(blocks, x)
    except (RuntimeError, TypeError, IndexError, ValueError):  # of the model's own code, given what it doesn't expect
        return True
    return all(found.shape != of.shape or apart(found, of) > CLOSE for of in wanted)


def apart(x: Tensor, y: Tensor) -> float:
    """Return the largest difference between two outputs of one shape and any type, of the largest; 0 for NaN."""
    x, y = x.double(), y.double()
    return float(((x - y).abs().max() / y.abs().max().clamp_min(torch.finfo(y.dtype).tiny)).nan_to_num(0))


def _watched(
    model: nn.Module, chosen: Sequence[tuple[str, nn.Module]], x: Tensor
) -> tuple[list[_Part], list[nn.Module]]:
    """Run the model on one row; return its parts and its layers with weights, both in the order of their calls."""
    ran: list[_Part] = []
    calls: list[nn.Module] = []

    def watch(name: str, module: nn.Module) -> Callable[..., None]:
        def hook(_: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any], output: Any) -> None:
            tensors = [x for x in (*arguments[:1], _first(output)) if isinstance(x, Tensor) and x.is_floating_point()]
            if len(tensors) < 2:
                where = f"{type(model).__name__}{'.' * bool(name)}{name}"
                raise InputError(
                    f"{where}: is no block: its first argument and its output are not both tensors of floats; {HINT}"
                )
            ran.append(_Part(name, module, arguments[1:], keywords, output))

        return hook

    with contextlib.ExitStack() as hooks:
        for name, module in chosen:
            hooks.enter_context(module.register_forward_hook(watch(name, module), with_kwargs=True))
        for layer in filter(weight_axes, model.modules()):
            hooks.enter_context(layer.register_forward_pre_hook(lambda layer, _: calls.append(layer)))
        model(first_input(x))
    names = [part.name for part in ran]
    for name, _ in chosen:
        if names.count(name) != 1:
            raise InputError(f"{name}: called {names.count(name)} times in a forward pass, not once; {HINT}")
    return ran, calls


def _block(model: nn.Module, parts: Sequence[_Part], index: int, calls: list[nn.Module], row: Tensor) -> Block:
    """Return a part as a block. The input of each layer is quantized, but for that of the network's first layer."""
    part = parts[index]
    layers = [module for module in part.module.modules() if weight_axes(module) and calls.count(module) == 1]

    def before(x: Tensor) -> Tensor:
        return _replayed(model, parts[: index + 1], row.to(x.device), x)

    def call(module: nn.Module, x: Tensor, mask: Tensor | None) -> Tensor:
        return _first(module(x, *part.extra, **part.keywords))

    sites = tuple(Site(layer, "input") for layer in layers if layer is not calls[0])
    return Block(part.name or "network", part.module, sites, before, call)


def _replayed(model: nn.Module, parts: Sequence[_Part], row: Tensor, x: Tensor) -> Tensor:
    """Run the model's own code until the last of these parts is called; return the input of that part.

    Args:
        model: the network.
        parts: in the order of their calls.
        row: an input of the network, (1, ...), for everything that runs before the last part but one.
        x: the output (N, ...) of the last part but one; if there is none, the network's input.
    """
    *before, last = parts
    caught: list[Tensor] = []

    def catch(_: nn.Module, arguments: tuple[Any, ...]) -> None:
        caught.append(arguments[0])
        raise _Reached

    with contextlib.ExitStack() as undo:
        for part in before:
            first = x if part is before[-1] else _first(part.output).clone()
            given = (first, *part.output[1:]) if isinstance(part.output, tuple) else first
            undo.enter_context(_standing_in(part.module, given))
        # before the quantizer of its input, which is another hook
        undo.enter_context(last.module.register_forward_pre_hook(catch, prepend=True))
        undo.enter_context(contextlib.suppress(_Reached))
        model(first_input(row if before else x))
    return caught[0]


@contextlib.contextmanager
def _standing_in(module: nn.Module, value: Any) -> Iterator[None]:
    """Have a module give ``value`` instead of computing something."""
    own = module.__dict__.get("forward")
    module.forward = lambda *_, **__: value
    try:
        yield
    finally:
        del module.forward
        if own is not None:
            module.forward = own


def _first(output: Any) -> Any:
    """Return the first of an output that may be a tuple."""
    return output[0] if isinstance(output, tuple) and output else output
