"""Tensors of a model: find and replace them, seed them, compare outputs, build models without weights."""

import contextlib
import dataclasses
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

CHUNK = 2**18  # elements compared at a time
Place = tuple[nn.Module, str]  # a module and the name of its parameter or buffer


def places(model: nn.Module) -> dict[str, Place]:
    """Return the place of each tensor of ``model.state_dict()`` by its name; tied tensors have several names."""
    return {
        f"{prefix}.{leaf}" if prefix else leaf: (module, leaf)
        for prefix, module in model.named_modules(remove_duplicate=False)
        for leaf, value in (*module._parameters.items(), *module._buffers.items())
        if value is not None and leaf not in module._non_persistent_buffers_set
    }


def untied(model: nn.Module) -> dict[str, Place]:
    """Return the places of a model's tensors by name; tied tensors have only their first name."""
    owners = places(model)
    first = {id(getattr(*place)): name for name, place in reversed(owners.items())}
    return {name: place for name, place in owners.items() if first[id(getattr(*place))] == name}


def matrices(model: nn.Module, names: Iterable[str]) -> list[str]:
    """Return the names, among ``names``, of tensors with two or more dimensions that are no embeddings."""
    owners = places(model)
    found = [(name, getattr(*owners[name]), owners[name][0]) for name in names]
    return [name for name, value, owner in found if value.ndim > 1 and not isinstance(owner, nn.Embedding)]


def within(module: nn.Module, owners: dict[str, Place]) -> list[str]:
    """Return the names of the tensors that ``module`` and its submodules hold."""
    inside = set(module.modules())
    return [name for name, (owner, _) in owners.items() if owner in inside]


def put(place: Place, value: Tensor) -> None:
    """Replace a parameter or buffer by ``value``, any shape; copying can't fill a tensor without values."""
    module, leaf = place
    setattr(module, leaf, nn.Parameter(value, requires_grad=False) if leaf in module._parameters else value)


def linears(model: Any) -> list[str]:
    """Return the weight names of all linears except the head, which may be tied to embeddings."""
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    found = [name for name, module in model.named_modules() if isinstance(module, nn.Linear) and module is not head]
    return [f"{name}.weight" for name in found]


@contextlib.contextmanager
def unchanged(model: nn.Module) -> Iterator[None]:
    """Restore, at the end, a model's buffers and the tensors that its modules keep as plain attributes.

    A forward pass may update such tensors: a running maximum, the last activations.
    """
    holders = [holder for module in model.modules() for holder in (module._buffers, vars(module))]
    kept = [(of, key, value, value.clone()) for of in holders for key, value in of.items() if isinstance(value, Tensor)]
    try:
        yield
    finally:
        with torch.no_grad():
            for holder, key, value, before in kept:
                holder[key] = value.copy_(before)


def tensors(output: Any) -> list[Tensor]:
    """Return the tensors, any shape, in an output: a tensor, or a nested tuple, list, mapping or dataclass."""
    if isinstance(output, Tensor):
        return [output]
    if isinstance(output, Mapping):
        inner = [*output.values()]
    elif dataclasses.is_dataclass(output):
        inner = [getattr(output, field.name) for field in dataclasses.fields(output)]
    else:
        inner = [*output] if isinstance(output, tuple | list) else []
    return [tensor for value in inner for tensor in tensors(value)]


def apart(x: Tensor, y: Tensor) -> float:
    """Return the largest difference between two outputs of one shape and any type, relative to the largest ``|y|``.

    Elements that are equal or NaN in both have no difference; NaN or infinity in one alone is an infinite difference.
    """
    difference = largest = 0.0
    for ours, theirs in zip(x.flatten().split(CHUNK), y.flatten().split(CHUNK), strict=True):
        ours, theirs = ours.double(), theirs.double()
        same = (ours == theirs) | (ours.isnan() & theirs.isnan())
        apart = (ours - theirs).abs().masked_fill(same, 0).nan_to_num(torch.inf).max()
        difference, largest = max(difference, float(apart)), max(largest, float(theirs.nan_to_num(0, 0, 0).abs().max()))
    return difference / max(largest, torch.finfo(torch.double).tiny)


def outputs_apart(found: Any, wanted: Any) -> float:
    """Return the largest difference (`apart`) between corresponding tensors in two outputs of a network.

    Other types than floats, such as classes, count only if no tensor is a float: they jump where values are close.
    """
    ours, theirs = tensors(found), tensors(wanted)
    if [x.shape for x in ours] != [y.shape for y in theirs]:
        return torch.inf
    pairs = [(x, y) for x, y in zip(ours, theirs, strict=True) if x.numel()]
    return max((apart(x, y) for x, y in [pair for pair in pairs if pair[1].is_floating_point()] or pairs), default=0.0)


@contextlib.contextmanager
def seeded(seed: int, device: torch.device | None = None) -> Iterator[None]:
    """Seed the global generators, including NumPy's and Python's, inside; restore their states afterwards."""
    gpus = [device] if device is not None and device.type == "cuda" else []
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    with torch.random.fork_rng(devices=gpus):
        # Not torch.manual_seed: it would also seed other accelerators, whose state isn't restored.
        torch.default_generator.manual_seed(seed)
        if gpus:
            torch.cuda.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)  # noqa: NPY002


@contextlib.contextmanager
def weightless() -> Iterator[None]:
    """Create models inside with parameters that have no values (on the ``meta`` device).

    Buffers are computed as usual, because files lack rotary frequencies and similar buffers.
    """
    register = nn.Module.register_parameter

    def register_empty(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        if parameter is not None and not parameter.is_meta:
            parameter = nn.Parameter(parameter.detach().to("meta"), requires_grad=False)
        register(module, name, parameter)

    nn.Module.register_parameter = register_empty  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]


class Largest(TorchDispatchMode):
    """Measures the bytes of the largest tensor created inside; views of a module's weights don't count."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.bytes = 0
        self._weights = {weight.untyped_storage().data_ptr() for weight in module.parameters()}

    def __torch_dispatch__(
        self, function: Callable[..., Any], types: Any, arguments: Any = (), keywords: dict[str, Any] | None = None
    ) -> Any:
        """Run an operation and measure its results."""
        made = function(*arguments, **(keywords or {}))
        for x in made if isinstance(made, tuple | list) else [made]:
            if isinstance(x, Tensor) and x.untyped_storage().data_ptr() not in self._weights:
                self.bytes = max(self.bytes, x.numel() * x.itemsize)
        return made
