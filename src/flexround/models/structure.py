"""Any transformer of Hugging Face's as blocks: its stack of layers is found by structure, not by the model's name.

The model's own code makes the arguments of a layer (mask, positions, rotations): it runs up to the layer, with the
layers before it standing in, and the layer is then called with the same. So an architecture needs no adapter, if each
layer of the stack reads what the one before it gives.
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

HIDDEN, IDS = "inputs_embeds", "input_ids"  # arguments by which a model of transformers takes hidden states or tokens
# What a layer may give for hidden states: itself, or tuples whose second is the attention's weights.
LAYER_OUTPUTS: tuple[Callable[[Tensor], Any], ...] = (lambda x: x, lambda x: (x,), lambda x: (x, None))


def blocks(model: nn.Module) -> list[Block]:
    """Cut a model of transformers that reads tokens, with a head or inside another module, into its layers.

    The first block's input is int64 (N, 2, T): token ids, then token types, which count where the model knows types.
    The last block's output is that of the last layer. The input of each linear in a layer is quantized. What is outside
    the layers (embeddings, norms, pooler, head) stays in full precision, as in section 4.3 of the paper.

    Raises:
        InputError: there is no such stack.
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
    """Return the name of a model's list of layers, the innermost module that takes hidden states and runs it, and it.

    Of several lists it is the one with the most weights: the text's in a model that also reads images.
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
    """Return the number of weights of a linear or convolution, without those of modules inside."""
    weight = module.weight if weight_axes(module) else None
    return weight.numel() if isinstance(weight, Tensor) else 0


class _Calls:
    """The arguments with which the model calls its layers.

    They are kept for inputs without padding, since the next iteration has inputs of the same shape.
    """

    def __init__(self, host: nn.Module, layers: Sequence[nn.Module]) -> None:
        self.host, self.layers = host, layers
        self.known: dict[int, tuple[object, Call]] = {}
        self.ways = [*itertools.product((HIDDEN, IDS), LAYER_OUTPUTS)]  # the one that fits first, once it is known

    def arguments(self, index: int, x: Tensor, mask: Tensor | None) -> Call:
        """Return positional and named arguments of a layer for hidden states ``x`` (N, T, H) and mask, bool (N, T)."""
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
                continue  # by another way
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
        """Run the model, given hidden states or token ids, until it calls a layer."""

        def through(*arguments: Any, **keywords: Any) -> Any:
            return output(first_argument(arguments, keywords))

        value = x.detach() if given == HIDDEN else x.new_zeros(x.shape[:2], dtype=torch.long)
        replaced = dict.fromkeys(self.layers[:index], through)
        return reached(self.layers[index], lambda: run(self.host, {given: value, "attention_mask": mask}), replaced)


def refuse_memory(error: Exception) -> None:
    """Raise an error that says that the memory was too small: a network doesn't compute something else for that."""
    if hardware.TOO_LITTLE.search(str(error)):
        raise error


def run(model: nn.Module, inputs: Mapping[str, Any]) -> Any:
    """Call a model of transformers with those of the named inputs that it knows and that are there, without a cache."""
    given = {"use_cache": False, **{name: value for name, value in inputs.items() if value is not None}}
    return model(**known(model, given))


def known(model: nn.Module, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of the named inputs that a model's forward has, or one that it passes its keywords on to."""
    parents = (vars(kind)["forward"] for kind in type(model).__mro__ if "forward" in vars(kind))
    names: set[str] = set()
    for forward in (model.forward, *parents):
        names |= inspect.signature(forward).parameters.keys()
        if not any(each.kind is each.VAR_KEYWORD for each in inspect.signature(forward).parameters.values()):
            break
    return {name: value for name, value in inputs.items() if name in names}


def _embedded(host: nn.Module, first: nn.Module, tokens: Tensor) -> Tensor:
    """Return what the first layer reads, (N, T, H), for token ids and types (N, 2, T)."""
    ids, types = tokens.unbind(1)
    inputs = {IDS: ids, "token_type_ids": types if types.any() else None}
    return first_argument(*reached(first, lambda: run(host, inputs), {}))


def _call(calls: _Calls, index: int, layer: nn.Module, x: Tensor, mask: Tensor | None) -> Tensor:
    """Run a layer on hidden states (N, T, H)."""
    arguments, keywords = with_first(*calls.arguments(index, x, mask), x)
    return first_output(layer(*arguments, **keywords))
