"""What a reconstruction leaves behind: integer codes, steps and zero points, in memory and on disk."""

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from flexround import artifacts
from flexround.errors import InputError
from flexround.models.blocks import Block, Site
from flexround.quant.activation import ActivationQuantizer
from flexround.quant.grid import Grid
from flexround.surgery.place import attach_quantizer, bake

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
        """Return the dequantized weight (codes - zero_point) * step, float32."""
        assert self.codes is not None
        return (self.codes.float() - self.grid.zero_point) * self.grid.step


def store_codes(codes: Tensor, grid: Grid) -> Tensor:
    """Turn zero-point-free codes into stored ones: int8 for signed grids, uint8 for unsigned ones."""
    return (codes + grid.zero_point).to(torch.int8 if grid.qmin < 0 else torch.uint8)


Result = dict[str, Stored]  # key: "weight/<module>" or "activation/<module>/<input|output>"


def weight_key(name: str) -> str:
    """Return the key of a module's weight."""
    return f"{WEIGHT}/{name}"


def site_key(names: dict[nn.Module, str], site: Site) -> str:
    """Return the key of an activation site."""
    return f"{ACTIVATION}/{names[site.module]}/{site.where}"


def flatten(result: Result) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Split a result into CPU tensors and JSON facts (integer ranges)."""
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
    """Undo :func:`flatten`."""
    result = {}
    for key, ranges in facts.items():
        grid = Grid(tensors[f"{key}:step"], tensors[f"{key}:zero_point"], ranges["qmin"], ranges["qmax"])
        result[key] = Stored(grid, tensors.get(f"{key}:codes"), tensors.get(f"{key}:initial_step"))
    return result


def apply(result: Result, model: nn.Module, blocks: Iterable[Block]) -> None:
    """Write a result into a model: dequantized weights, quantizers at their sites."""
    modules = dict(model.named_modules())
    names = {module: name for name, module in modules.items()}
    sites = {site_key(names, site): site for block in blocks for site in block.sites}
    for key, stored in result.items():
        kind, _, rest = key.partition("/")
        if kind == WEIGHT:
            bake(modules[rest], stored.values().to(modules[rest].weight.device))
        else:
            device = next(model.parameters()).device
            grid = Grid(stored.grid.step.to(device), stored.grid.zero_point, stored.grid.qmin, stored.grid.qmax)
            attach_quantizer(sites[key], ActivationQuantizer(grid))


def save(
    directory: Path, result: Result, model: nn.Module, facts: dict[str, Any], companions: Sequence[str] = ()
) -> None:
    """Write ``model.safetensors`` (codes, steps, zero points, all other parameters) and ``manifest.json``.

    ``companions`` are other files of the directory that belong to the network.

    Raises:
        InputError: a value is NaN or Inf, or the directory can't be written.
    """
    from safetensors.torch import save_file

    tensors, grids = flatten(result)
    quantized = {key.partition("/")[2] + ".weight" for key in result if key.startswith(f"{WEIGHT}/")}
    for name, value in model.state_dict().items():
        if name not in quantized and not name.endswith("_quantizer.raw_step"):
            # A copy, because tied tensors must not share memory.
            tensors[f"{PARAMETER}/{name}"] = value.detach().cpu().contiguous().clone()
    for key, value in tensors.items():
        if not torch.isfinite(value.float()).all():
            raise InputError(f"{directory}: {key} holds NaN or Inf and is not stored")
    artifacts.atomic_write(directory / "model.safetensors", lambda path: save_file(tensors, path))
    artifacts.write_manifest(directory, ["model.safetensors", *companions], grids=grids, **facts)


def load(directory: Path, model: nn.Module, blocks: Iterable[Block]) -> Result:
    """Read a stored result into ``model``, whose weights may be anything but whose structure must be the same.

    Raises:
        InputError: damaged files, or tensors that don't fit the model.
    """
    from safetensors.torch import load_file

    manifest = artifacts.read_manifest(directory)
    tensors = load_file(directory / "model.safetensors")
    result = unflatten(tensors, manifest["grids"])
    parameters = {key.partition("/")[2]: value for key, value in tensors.items() if key.startswith(f"{PARAMETER}/")}
    blocks = list(blocks)
    if differing := _differing(result, parameters, model, blocks):
        raise InputError(f"{directory}: made for another model; first differing tensors: {', '.join(differing[:3])}")
    model.load_state_dict(parameters, strict=False)
    apply(result, model, blocks)
    return result


def _differing(result: Result, parameters: dict[str, Tensor], model: nn.Module, blocks: Iterable[Block]) -> list[str]:
    """Return the tensors that the model or the stored result has alone, or in another shape."""
    stored = {name: value.shape for name, value in parameters.items()}
    for key, value in result.items():
        if value.codes is not None:
            stored[key.partition("/")[2] + ".weight"] = value.codes.shape
    wanted = {name: value.shape for name, value in model.state_dict().items()}
    names = {module: name for name, module in model.named_modules()}
    sites = {site_key(names, site) for block in blocks for site in block.sites}
    lost = [key for key in result if key.startswith(f"{ACTIVATION}/") and key not in sites]
    return sorted(name for name in stored.keys() | wanted if stored.get(name) != wanted.get(name)) + lost
