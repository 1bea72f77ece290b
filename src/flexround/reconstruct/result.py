"""What a reconstruction leaves behind: integer codes, steps and zero points, in memory and on disk."""

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from flexround.errors import InputError, NumericalError
from flexround.io import artifacts
from flexround.models.blocks import Block, Site
from flexround.models.shards import CPU
from flexround.models.surgery.attach import attach_quantizer
from flexround.models.tensors import places, put
from flexround.quant import activation
from flexround.quant.grid import Grid
from flexround.reconstruct import packing
from flexround.reconstruct.state import State

WEIGHT, ACTIVATION, PARAMETER = "weight", "activation", "parameter"


@dataclasses.dataclass(frozen=True)
class Stored:
    """One quantized tensor's grid, and a weight's codes.

    Attributes:
        grid: the final grid (learned step).
        codes: stored codes ``c + zero_point`` of a weight, int8 (signed) or uint8, its shape; None for activations.
        initial_step: a weight's step before learning, shape of ``grid.step``.
    """

    grid: Grid
    codes: Tensor | None = None
    initial_step: Tensor | None = None

    def values(self) -> Tensor:
        """Return the dequantized weight (codes - zero_point) * step, float32, shape of ``codes``."""
        assert self.codes is not None
        return (self.codes.float() - self.grid.zero_point) * self.grid.step


def store_codes(name: str, codes: Tensor, grid: Grid, given: Grid) -> Tensor:
    """Turn the zero-point-free codes of a module, any shape, into stored ones: int8 for signed grids, else uint8.

    Raises:
        NumericalError: the grid has other bits or another granularity than the one ``given`` to the rounding, which may
            learn values of step and zero point alone; or a code is no integer of the grid.
    """
    found, wanted = ([of.qmin, of.qmax, list(of.step.shape), list(of.zero_point.shape)] for of in (grid, given))
    if found != wanted:
        raise NumericalError(
            f"{name}: least and largest code and the shapes of step and zero point are {found} after learning, the "
            f"recipe's are {wanted}; final_grid() of a rounding may change values of step and zero point alone"
        )
    stored = codes + grid.zero_point
    wrong = ~((stored == stored.round()) & (stored >= grid.qmin) & (stored <= grid.qmax))
    if wrong.any():
        raise NumericalError(
            f"{name}: {int(wrong.sum())} of {codes.numel()} codes are no integers from {grid.qmin} to {grid.qmax}, "
            f"the first is {stored[wrong][0].item():g}; codes() of a rounding returns whole numbers within its bounds"
        )
    return stored.to(torch.int8 if grid.qmin < 0 else torch.uint8)


Result = dict[str, Stored]  # key: "weight/<module>" or "activation/<module>/<input|output>"


def weight_key(name: str) -> str:
    """Return the key of a module's weight."""
    return f"{WEIGHT}/{name}"


def site_key(names: dict[nn.Module, str], site: Site) -> str:
    """Return the key of an activation site."""
    return f"{ACTIVATION}/{names[site.module]}/{site.where}"


def flatten(result: Result) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Split a result into CPU tensors, each of any shape, and JSON facts (integer ranges)."""
    tensors: dict[str, Tensor] = {}
    facts: dict[str, Any] = {}
    for key, stored in result.items():
        facts[key] = {"qmin": stored.grid.qmin, "qmax": stored.grid.qmax}
        parts = {
            "step": stored.grid.step,
            "zero_point": stored.grid.zero_point,
            "codes": stored.codes,
            "initial_step": stored.initial_step,
        }
        # cloned: safetensors refuses tensors that share memory, as an unlearned step and its initial value do
        tensors |= {f"{key}:{part}": t.detach().cpu().clone() for part, t in parts.items() if t is not None}
    return tensors, facts


def unflatten(tensors: dict[str, Tensor], facts: dict[str, Any]) -> Result:
    """Undo :func:`flatten`, with the shapes as they are: each tensor of any shape.

    Raises:
        InputError: a tensor is missing or no quantizer's: steps are positive, codes and zero points integers in range.
    """
    result = {}
    for key, ranges in facts.items():
        try:
            grid = Grid(tensors[f"{key}:step"], tensors[f"{key}:zero_point"], ranges["qmin"], ranges["qmax"])
            codes = tensors[f"{key}:codes"] if key.startswith(f"{WEIGHT}/") else None
        except KeyError as error:
            raise InputError(f"{key}: {error} is missing") from error
        if not (grid.step > 0).all():
            raise InputError(f"{key}: a step is not positive")
        for what, value in (("zero point", grid.zero_point), ("code", codes)):
            if value is not None and not ((value >= grid.qmin) & (value <= grid.qmax) & (value % 1 == 0)).all():
                raise InputError(f"{key}: a {what} is no integer from {grid.qmin} to {grid.qmax}")
        result[key] = Stored(grid, codes, tensors.get(f"{key}:initial_step"))
    return result


def apply(
    result: Result,
    model: nn.Module,
    blocks: Iterable[Block],
    device: torch.device,
    kind: torch.dtype | None = torch.float32,
) -> None:
    """Write a result into a model: weights of type ``kind``, or None for the type they have there; quantizers."""
    modules = dict(model.named_modules())
    names = {module: name for name, module in modules.items()}
    sites = {site_key(names, site): site for block in blocks for site in block.sites}
    for key, stored in result.items():
        what, _, rest = key.partition("/")
        if what == WEIGHT:
            put((modules[rest], "weight"), stored.values().to(device, kind or modules[rest].weight.dtype))
        else:
            grid = dataclasses.replace(stored.grid, step=stored.grid.step.to(device))
            attach_quantizer(sites[key], activation.of_grid(grid))


def parameters(model: nn.Module, names: Iterable[str]) -> dict[str, Tensor]:
    """Return copies of tensors of a model, any shape, by key: tied ones must not share the memory of a file.

    Raises:
        InputError: a value is NaN or Inf.
    """
    owners = places(model)
    tensors = {f"{PARAMETER}/{name}": getattr(*owners[name]).detach().cpu().contiguous().clone() for name in names}
    check_finite(tensors)
    return tensors


def check_finite(tensors: dict[str, Tensor]) -> None:
    """Refuse NaN and Inf in tensors of any shape.

    Raises:
        InputError: naming the tensor.
    """
    for key, value in tensors.items():
        if value.is_floating_point() and not torch.isfinite(value).all():
            raise InputError(f"{key} holds NaN or Inf; look for them in the checkpoint")


def publish(directory: Path, state: State, facts: dict[str, Any], companions: Sequence[str] = ()) -> None:
    """Make the files of a finished state the result: one of every block and phase, and ``manifest.json``.

    They are linked, not written again, and what a kill leaves behind can be published again.

    Args:
        directory: of the result.
        state: of which every block is finished.
        facts: for the manifest, which also holds the integer range of each tensor by file (``grids``).
        companions: other files of the directory that belong to the network.

    Raises:
        InputError: the directory can't be written.
    """
    files = [entry["file"] for entry in state.entries]
    for path in [directory / "manifest.json", *directory.glob("*.safetensors")]:
        path.unlink(missing_ok=True)
    for name in files:
        artifacts.link(state.directory / name, directory / name)
    grids = {entry["file"]: entry["facts"]["grids"] for entry in state.entries}
    artifacts.write_manifest(directory, [*files, *companions], grids=grids, **facts)


def load(
    directory: Path,
    model: nn.Module,
    blocks: Iterable[Block],
    device: torch.device = CPU,
    kind: torch.dtype | None = torch.float32,
) -> None:
    """Read a stored result into ``model``, whose weights may be anything or nothing, whose structure must be the same.

    Args:
        directory: of the result; one of its files at a time is in the host's memory.
        model: what is read is put onto ``device``, the rest stays where it is.
        blocks: of the model.
        device: of what is read.
        kind: type of parameters; None for the types that the model's tensors have.

    Raises:
        InputError: damaged files, tensors that don't fit the model, or values that no reconstruction stores.
    """
    grids = artifacts.read_manifest(directory)["grids"]
    blocks = list(blocks)
    if differing := _differing(directory, grids, model, blocks):
        raise InputError(f"{directory}: made for another model; first differing tensors: {', '.join(differing[:3])}")
    owners = places(model)
    for file, of_file in grids.items():
        tensors = packing.read(directory / file)
        try:
            check_finite(tensors)
            quantized = unflatten(tensors, of_file)
        except InputError as error:
            raise InputError(f"{directory / file}: {error}") from error
        for key, value in tensors.items():
            if key.startswith(f"{PARAMETER}/"):
                place = owners[key.partition("/")[2]]
                there = getattr(*place)
                cast = value.is_floating_point() and (kind is None or isinstance(there, nn.Parameter))
                put(place, value.to(device, (kind or there.dtype) if cast else value.dtype))
        apply(quantized, model, blocks, device, kind)


def _differing(directory: Path, grids: dict[str, Any], model: nn.Module, blocks: Iterable[Block]) -> list[str]:
    """Return the tensors that the model or the stored result has alone, or in another shape."""
    stored: dict[str, tuple[int, ...]] = {}
    for name in grids:
        for key, shape in packing.shapes(directory / name).items():
            kind, _, rest = key.partition("/")
            if kind == PARAMETER or key.removesuffix(packing.CODES) in grids[name]:
                stored[rest.replace(packing.CODES, ".weight")] = shape
    wanted = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    names = {module: name for name, module in model.named_modules()}
    sites = {site_key(names, site) for block in blocks for site in block.sites}
    quantized = (key for of_file in grids.values() for key in of_file if not key.startswith(f"{WEIGHT}/"))
    lost = [key for key in quantized if key not in sites]
    return sorted(name for name in stored.keys() | wanted if stored.get(name) != wanted.get(name)) + lost
