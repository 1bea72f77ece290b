"""The files of a quantized network: integer codes, steps and zero points, with the tensors that are not quantized.

This module reads and writes all files with codes. A file holds a part of a network, such as one block; its tensors are

* ``parameter/NAME``: an unquantized tensor of the state dict;
* ``weight/MODULE:codes``, ``:step``, ``:zero_point``, ``:initial_step``: a quantized weight;
* ``weight/MODULE:initial_zero_point``: for a weight with a learned zero point;
* ``activation/MODULE/input:step``, ``:zero_point``, or ``output``: the grid of an activation.

The metadata have the smallest and the largest code of each grid. Codes of fewer than eight bits are stored losslessly
in bit planes, at bits / 8 bytes per code; the metadata then have their shape.
"""

import dataclasses
import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor, nn

from flexround.errors import InputError, NumericalError
from flexround.io import artifacts
from flexround.models.blocks import Block, Site
from flexround.models.surgery.attach import attach_quantizer
from flexround.models.tensors import places, put
from flexround.models.weights import CPU
from flexround.quant import activation
from flexround.quant.grid import Grid, in_groups, nearest_codes

WEIGHT, ACTIVATION, PARAMETER = "weight/", "activation/", "parameter/"
CODES = ":codes"
BYTE = 8  # bits
GRIDS = "grids"  # the only metadata key: the order of several keys would change from run to run
SUFFIX = ".safetensors"


@dataclasses.dataclass(frozen=True)
class Stored:
    """One quantized tensor's grid, and a weight's codes.

    Attributes:
        grid: the final grid (learned step).
        codes: a weight's stored codes ``c + zero_point``, int8 (signed) or uint8, its shape; None for activations.
        initial_step: a weight's step before learning, shape of ``grid.step``.
        initial_zero_point: a weight's zero point before learning if learning changed it, else None.
    """

    grid: Grid
    codes: Tensor | None = None
    initial_step: Tensor | None = None
    initial_zero_point: Tensor | None = None

    def values(self) -> Tensor:
        """Return the dequantized weight (codes - zero_point) * step, float32, shape of ``codes``."""
        assert self.codes is not None
        codes = in_groups(self.codes.float(), self.grid.step)
        return ((codes - self.grid.zero_point) * self.grid.step).reshape(self.codes.shape)


Result = dict[str, Stored]  # key: "weight/<module>" or "activation/<module>/<input|output>"


def weight_name(key: str) -> str:
    """Return a weight's name in the state dict; in a network of one layer, the module has no name."""
    return f"{key.removeprefix(WEIGHT)}.weight".removeprefix(".")


@dataclasses.dataclass(frozen=True)
class Part:
    """A file's content, on the CPU: quantized tensors by key, other tensors of the state dict by name."""

    quantized: Result
    parameters: dict[str, Tensor]

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors, any shape, by their keys in the file."""
        tensors = {f"{PARAMETER}{name}": value for name, value in self.parameters.items()}
        for key, stored in self.quantized.items():
            parts = vars(stored.grid) | vars(stored)
            tensors |= {f"{key}:{part}": value for part, value in parts.items() if isinstance(value, Tensor)}
        return tensors

    def state(self) -> dict[str, Tensor]:
        """Return all tensors, any shape, by their names in the network's state dict; quantized weights are float32."""
        weights = {weight_name(key): one.values() for key, one in self.quantized.items() if key.startswith(WEIGHT)}
        return self.parameters | weights


def part(quantized: Result, model: nn.Module, names: Iterable[str], copied: bool = True) -> Part:
    """Return a part with copies of quantized tensors and of a model's tensors with these ``names``.

    Tied tensors share one copy. ``copied=False`` is for tensors that nothing changes afterwards.

    Raises:
        InputError: NaN; or Inf except in a buffer, where masks may hold it. The message has the tensor's key.
    """
    owners = places(model)
    values = {name: getattr(*owners[name]) for name in names}
    copies = {value: _on_cpu(value) if copied else value.detach().cpu().contiguous() for value in set(values.values())}
    parameters = {name: copies[value] for name, value in values.items()}
    made = Part({key: _copied(stored) for key, stored in quantized.items()}, parameters)
    buffers = {f"{PARAMETER}{name}" for name, value in values.items() if not isinstance(value, nn.Parameter)}
    for key, value in made.tensors().items():
        wrong = value.isnan() if key in buffers else ~value.isfinite()
        if wrong.any():
            raise InputError(f"{key} holds NaN or Inf; look for them in the checkpoint")
    return made


def _copied(stored: Stored) -> Stored:
    grid = dataclasses.replace(stored.grid, step=_on_cpu(stored.grid.step), zero_point=_on_cpu(stored.grid.zero_point))
    others = stored.codes, stored.initial_step, stored.initial_zero_point
    return Stored(grid, *(None if value is None else _on_cpu(value) for value in others))


def _on_cpu(value: Tensor) -> Tensor:
    return value.detach().cpu().contiguous().clone()


def site_key(names: dict[nn.Module, str], site: Site) -> str:
    """Return the key of an activation site."""
    return f"{ACTIVATION}{names[site.module]}/{site.where}"


def store_codes(name: str, codes: Tensor, grid: Grid) -> Tensor:
    """Turn a module's zero-point-free codes, any shape, into stored codes: int8 for signed grids, else uint8.

    Raises:
        NumericalError: a code is no integer of the grid.
    """
    stored = codes + grid.zero_point
    wrong = ~((stored == stored.round()) & (stored >= grid.qmin) & (stored <= grid.qmax))
    if wrong.any():
        raise NumericalError(
            f"{name}: {int(wrong.sum())} of {codes.numel()} codes are no integers from {grid.qmin} to {grid.qmax}, "
            f"the first is {stored[wrong][0].item():g}; codes() of a rounding returns whole numbers within its bounds"
        )
    return stored.to(torch.int8 if grid.qmin < 0 else torch.uint8)


# a file


def pack(codes: Tensor, qmin: int, bits: int) -> Tensor:
    """Return the bit planes, uint8 (bits, ceil(n / 8)), of n stored codes, int8 or uint8 of any shape."""
    flat = (codes - qmin).to(torch.uint8).flatten().numpy()
    return torch.from_numpy(np.stack([np.packbits(flat >> bit & 1) for bit in range(bits)]))


def unpack(planes: Tensor, qmin: int, shape: Iterable[int]) -> Tensor:
    """Undo :func:`pack`; return codes of ``shape``, int8 if ``qmin`` is negative, else uint8."""
    shape = tuple(shape)
    flat = np.zeros(math.prod(shape), np.uint8)
    for bit, plane in enumerate(planes.numpy()):
        flat |= np.unpackbits(plane, count=flat.size) << bit
    codes = torch.from_numpy(flat).view(shape)
    return codes.to(torch.int8) + qmin if qmin < 0 else codes


def encode(content: Part) -> bytes:
    """Return the bytes of a part's file."""
    tensors, grids = content.tensors(), dict[str, dict[str, Any]]()
    once = {value: key for key, value in tensors.items()}
    tensors = {key: value if once[value] == key else value.clone() for key, value in tensors.items()}  # tied tensors
    for key, stored in content.quantized.items():
        low, high = stored.grid.qmin, stored.grid.qmax
        grids[key] = {"qmin": low, "qmax": high}
        bits = (high - low).bit_length()
        if stored.codes is not None and bits < BYTE:
            tensors[f"{key}{CODES}"] = pack(stored.codes, low, bits)
            grids[key]["shape"] = list(stored.codes.shape)
    return save(tensors, {GRIDS: json.dumps(grids, sort_keys=True)})


def read(path: Path) -> Part:
    """Return the content of a file."""
    with safe_open(path, framework="pt") as file:
        keys = set(file.keys())
        grids = json.loads(file.metadata()[GRIDS])
        parameters = [key for key in file.keys() if key.startswith(PARAMETER)]  # noqa: SIM118 (file is no dict)
        return Part(
            {key: _stored(file, keys, key, facts) for key, facts in grids.items()},
            {key.removeprefix(PARAMETER): file.get_tensor(key) for key in parameters},
        )


def _stored(file: Any, keys: set[str], key: str, facts: dict[str, Any]) -> Stored:
    """Return a quantized tensor from an open file, whose tensors are ``keys``."""
    low, high = facts["qmin"], facts["qmax"]
    grid = Grid(file.get_tensor(f"{key}:step"), file.get_tensor(f"{key}:zero_point"), low, high)
    if not key.startswith(WEIGHT):
        return Stored(grid)
    codes, initial = file.get_tensor(f"{key}{CODES}"), f"{key}:initial_zero_point"
    if "shape" in facts:
        codes = unpack(codes, low, facts["shape"])
    zero_point = file.get_tensor(initial) if initial in keys else None
    return Stored(grid, codes, file.get_tensor(f"{key}:initial_step"), zero_point)


# a network


def files(directory: Path) -> list[Path]:
    """Return the files of a stored network.

    Raises:
        InputError: as ``artifacts.read_manifest``.
    """
    return [directory / name for name in artifacts.read_manifest(directory)["files"] if name.endswith(SUFFIX)]


def apply(
    result: Result,
    model: nn.Module,
    blocks: Iterable[Block],
    device: torch.device,
    kind: torch.dtype | None = torch.float32,
) -> None:
    """Write a result's weights and quantizers into a model; weights get type ``kind``, None keeps the model's."""
    modules, sites = dict(model.named_modules()), _sites(model, blocks)
    for key, stored in result.items():
        if key.startswith(WEIGHT):
            module = modules[key.removeprefix(WEIGHT)]
            put((module, "weight"), stored.values().to(device, kind or module.weight.dtype))
        else:
            grid = dataclasses.replace(stored.grid, step=stored.grid.step.to(device))
            attach_quantizer(sites[key], activation.of_grid(grid))


def _sites(model: nn.Module, blocks: Iterable[Block]) -> dict[str, Site]:
    """Return the activation sites of a model's blocks by their keys."""
    names = {module: name for name, module in model.named_modules()}
    return {site_key(names, site): site for block in blocks for site in block.sites}


def load(
    directory: Path,
    model: nn.Module,
    blocks: Iterable[Block],
    device: torch.device = CPU,
    kind: torch.dtype | None = torch.float32,
) -> None:
    """Read a stored network into ``model``, one file at a time; see ``fill``.

    Raises:
        InputError: the sha256 of a file is not the manifest's, or tensors don't fit the model.
    """
    fill(map(read, files(directory)), model, blocks, device, kind, str(directory))


def fill(
    parts: Iterable[Part],
    model: nn.Module,
    blocks: Iterable[Block],
    device: torch.device = CPU,
    kind: torch.dtype | None = torch.float32,
    source: str = "the stored network",
) -> None:
    """Put all parts into ``model``, which must have the same structure; its weights may have any or no values.

    Tensors of the parts are put onto ``device``; other tensors don't move. Parameters get type ``kind``, or with None
    the types of the model's tensors. ``source`` names the parts in error messages.

    Raises:
        InputError: tensors that don't fit the model.
    """
    blocks = list(blocks)
    owners = {
        name: place for name, place in places(model).items() if not isinstance(place[0], activation.ActivationQuantizer)
    }
    missing, sites = {name: getattr(*place).shape for name, place in owners.items()}, _sites(model, blocks)
    for found in parts:
        shapes = {name: value.shape for name, value in found.parameters.items()}
        for key, stored in found.quantized.items():
            if stored.codes is not None:
                shapes[weight_name(key)] = stored.codes.shape
        foreign = [name for name, shape in shapes.items() if missing.pop(name, None) != shape]
        foreign += [key for key in found.quantized if key.startswith(ACTIVATION) and key not in sites]
        if foreign:
            break
        copies: dict[tuple[Tensor, torch.dtype], Tensor] = {}  # tied tensors share memory
        for name, value in found.parameters.items():
            there = getattr(*owners[name])
            cast = value.is_floating_point() and (kind is None or isinstance(there, nn.Parameter))
            wanted = value, (kind or there.dtype) if cast else value.dtype
            if wanted not in copies:
                copies[wanted] = value.to(device, wanted[1], copy=True)
            put(owners[name], copies[wanted])
        apply(found.quantized, model, blocks, device, kind)
    else:
        foreign = sorted(missing)
    if foreign:
        raise InputError(f"{source}: made for another model; first differing tensors: {', '.join(foreign[:3])}")


def learned_and_nearest(directory: Path, module: str, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return a weight's codes after learning, and its round-to-nearest codes on its *initial* grid.

    Both have the shape of ``weight``, the folded full-precision weight of ``module`` in the stored network.
    """
    parts = (read(path).quantized for path in files(directory))
    stored = next(part[key] for part in parts if (key := f"{WEIGHT}{module}") in part)
    assert stored.codes is not None
    assert stored.initial_step is not None
    zero_point = stored.grid.zero_point if stored.initial_zero_point is None else stored.initial_zero_point
    initial = dataclasses.replace(stored.grid, step=stored.initial_step, zero_point=zero_point)
    # relative to the learned zero point, as the learned codes
    nearest = nearest_codes(in_groups(weight, initial.step), initial) + stored.grid.zero_point
    return stored.codes, nearest.reshape(weight.shape)
