"""Blocks of any Hugging Face transformer: its stack of layers is found by structure, not by the model's name.

The model's own code computes a layer's arguments (mask, positions, rotations): it runs up to the layer, with stand-ins
for earlier layers. The block then reuses these arguments. An architecture needs no adapter if each layer reads the
previous layer's output.
"""

import functools
import inspect
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from flexround.errors import InputError
from flexround.machine import hardware
from flexround.models.blocks import Block, Site, identity
from flexround.models.surgery.attach import weight_axes
from flexround.models.trace import Call, first_argument, first_output, reached, with_first

HIDDEN, IDS = "inputs_embeds", "input_ids"  # arguments of transformers models for hidden states and tokens
# A layer may return hidden states, or a tuple of them and perhaps attention weights.
LAYER_OUTPUTS: tuple[Callable[[Tensor], Any], ...] = (lambda x: x, lambda x: (x,), lambda x: (x, None))


def blocks(model: nn.Module) -> list[Block]:
    """Cut a transformers model that reads tokens, with a head or inside another module, into its layers.

    The first block's input is int64 (N, 2, T): token ids, then token types, which matter if the model uses types.
    The last block's output is the last layer's. The input of each linear in a layer is quantized. Modules outside the
    layers (embeddings, norms, pooler, head) stay in full precision, as in section 4.3 of the paper.

    Raises:
        InputError: the model has no such stack.
    """
    found = stack(model)
    if found is None:
        raise InputError(f"{type(model).__name__}: no model of transformers with a list of layers that reads tokens")
    name, host, layers = found
    calls = _Calls(host, layers)
    made = []
    for i, layer in enumerate(layers):
        sites = tuple(Site(module, "input") for module in layer.modules() if weight_axes(module))
        before = identity if i else functools.partial(_embedded, host, layer)
        made.append(Block(f"{name}.{i}", layer, sites, before, functools.partial(_call, calls, i)))
    return made


def stack(model: nn.Module) -> tuple[str, nn.Module, list[nn.Module]] | None:
    """Return the name of a model's list of layers, the innermost module that runs it on hidden states, and the list.

    Among several lists, the list with the most weights counts: the text's in a model that also reads images.
    """
    outermost: dict[str, nn.Module] = {}
    for name, module in model.named_modules():
        if isinstance(module, nn.ModuleList) and not any(name.startswith(f"{outer}.") for outer in outermost):
            outermost[name] = module
    sizes = {name: sum(_size(layer) for layer in module.modules()) for name, module in outermost.items()}
    if not sizes or not max(sizes.values()):
        return None
    name = max(sizes, key=lambda name: sizes[name])
    parents = [name.rsplit(".", depth)[0] for depth in range(1, name.count(".") + 1)] + [""]
    hosts = (model.get_submodule(parent) for parent in parents)
    host = next((host for host in hosts if HIDDEN in inspect.signature(host.forward).parameters), None)
    return None if host is None else (name.rpartition(".")[2], host, [*outermost[name].children()])


def _size(module: nn.Module) -> int:
    """Return the number of weights of a linear or convolution, excluding inner modules."""
    weight = module.weight if weight_axes(module) else None
    return weight.numel() if isinstance(weight, Tensor) else 0


class _Calls:
    """The arguments with which the model calls its layers.

    Arguments for inputs without padding are cached, since the next iteration has inputs of the same shape.
    """

    def __init__(self, host: nn.Module, layers: Sequence[nn.Module]) -> None:
        self.host, self.layers = host, layers
        self.known: dict[int, tuple[object, Call]] = {}
        self.ways = [*itertools.product((HIDDEN, IDS), LAYER_OUTPUTS)]  # a way that worked moves to the front

    def arguments(self, index: int, x: Tensor, mask: Tensor | None) -> Call:
        """Return a layer's positional and named arguments for hidden states ``x`` (N, T, H) and mask, bool (N, T)."""
        key = tuple(x.shape), x.dtype, x.device
        if mask is None and index in self.known and self.known[index][0] == key:
            return self.known[index][1]
        found = self._seen(index, x, mask)
        if mask is None:
            self.known[index] = key, found
        return found

    def _seen(self, index: int, x: Tensor, mask: Tensor | None) -> Call:
        for way in list(self.ways):
            try:
                arguments, keywords = self._reached(index, x, mask, *way)
            except (RuntimeError, TypeError, IndexError, ValueError, AttributeError) as error:
                refuse_memory(error)
                continue  # try another way
            passed = first_argument(arguments, keywords)
            if isinstance(passed, Tensor) and (passed.shape, passed.device) == (x.shape, x.device):
                self.ways.sort(key=way.__ne__)
                return with_first(arguments, keywords, None)
        raise InputError(
            f"{type(self.host).__name__}: its layer {index} reads more than the hidden states of the layer before, or "
            "weights outside the layers that are not in memory; call flexround.quantize with the model, and blocks="
        )

    @torch.no_grad()
    def _reached(self, index: int, x: Tensor, mask: Tensor | None, given: str, output: Callable[[Tensor], Any]) -> Call:
        """Run the model on hidden states or token ids until it calls a layer; return the call."""

        def through(*arguments: Any, **keywords: Any) -> Any:
            return output(first_argument(arguments, keywords))

        value = x.detach() if given == HIDDEN else x.new_zeros(x.shape[:2], dtype=torch.long)
        replaced = dict.fromkeys(self.layers[:index], through)
        return reached(self.layers[index], lambda: run(self.host, {given: value, "attention_mask": mask}), replaced)


def refuse_memory(error: Exception) -> None:
    """Re-raise an error about too little memory: it must not count as a failed attempt."""
    if hardware.TOO_LITTLE.search(str(error)):
        raise error


def run(model: nn.Module, inputs: Mapping[str, Any]) -> Any:
    """Call a transformers model, without cache, with the named inputs that are not None and that it accepts."""
    given = {"use_cache": False, **{name: value for name, value in inputs.items() if value is not None}}
    return model(**known(model, given))


def known(model: nn.Module, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the named inputs that a model's ``forward`` accepts, itself or by passing keywords to a parent's."""
    parents = (vars(kind)["forward"] for kind in type(model).__mro__ if "forward" in vars(kind))
    names: set[str] = set()
    for forward in (model.forward, *parents):
        names |= inspect.signature(forward).parameters.keys()
        if not any(each.kind is each.VAR_KEYWORD for each in inspect.signature(forward).parameters.values()):
            break
    return {name: value for name, value in inputs.items() if name in names}


def _embedded(host: nn.Module, first: nn.Module, tokens: Tensor) -> Tensor:
    """Return the first layer's input (N, T, H) for token ids and types (N, 2, T)."""
    ids, types = tokens.unbind(1)
    inputs = {IDS: ids, "token_type_ids": types if types.any() else None}
    return first_argument(*reached(first, lambda: run(host, inputs), {}))


def _call(calls: _Calls, index: int, layer: nn.Module, x: Tensor, mask: Tensor | None) -> Tensor:
    """Run a layer on hidden states (N, T, H)."""
    arguments, keywords = with_first(*calls.arguments(index, x, mask), x)
    return first_output(layer(*arguments, **keywords))
