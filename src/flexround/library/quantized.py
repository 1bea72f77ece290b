"""A quantized network in memory, and on disk."""

import dataclasses
import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from flexround import artifacts, provenance
from flexround.errors import InputError, look_up
from flexround.models.blocks import Block, Site
from flexround.models.tensors import places
from flexround.reconstruct import packing, result
from flexround.reconstruct.network import STRUCTURAL
from flexround.settings.schema import Hyper, Recipe
from flexround.surgery.preprocess import prepare

RECORD = "record.json"
EXPORTS = {
    "compressed-tensors": "flexround.library.compressed",
    "onnx": "flexround.library.onnx_file",
    "torch": "flexround.library.state_dict",
}
Sites = list[tuple[str, Literal["input", "output"]]]


@dataclasses.dataclass
class Quantized:
    """What :func:`flexround.quantize` returns; call it as the model is called.

    Attributes:
        model: the network with dequantized weights, batch norms folded, and quantizers of activations if the recipe has
            them; in evaluation mode, on the device where it was made.
        recipe, hyper: all settings.
        sources: of each hyper-parameter, where its value comes from.
        report: a dict for each block and phase: ``block``, the mean squared errors ``error_rtn`` (round-to-nearest),
            ``error_soft`` (as learned) and ``error_hard`` (as stored) of its output, ``seconds``, ``peak_mb``.
        parts: stored tensors of each block, by the name of their file.
        grids: integer ranges of the tensors of each file.
        sites: module and ``input`` or ``output`` of each quantized activation.
    """

    model: nn.Module
    recipe: Recipe
    hyper: Hyper
    sources: dict[str, str]
    report: list[dict[str, Any]]
    parts: dict[str, dict[str, Tensor]]
    grids: dict[str, dict[str, Any]]
    sites: Sites

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Return what the model returns."""
        return self.model(*arguments, **keywords)

    def codes(self) -> dict[str, result.Stored]:
        """Return the integer codes, step and zero point of each quantized weight by the name of its module."""
        kind = f"{result.WEIGHT}/"
        stored = [result.unflatten(self.parts[name], self.grids[name]) for name in self.parts]
        return {key.removeprefix(kind): one for each in stored for key, one in each.items() if key.startswith(kind)}

    def save(self, directory: str | Path) -> Path:
        """Write the network as the suite stores its own: packed codes, steps, what is not quantized, a manifest.

        Raises:
            InputError: the directory can't be written, or holds something else.
        """
        directory = Path(directory)
        manifest = directory / "manifest.json"
        if directory.exists() and any(directory.iterdir()) and not manifest.exists():
            raise InputError(f"{directory}: not empty, and no quantized network; choose another directory")
        manifest.unlink(missing_ok=True)
        for path in directory.glob("*.safetensors"):
            path.unlink()
        for name, tensors in self.parts.items():
            artifacts.write_bytes(directory / name, packing.encode(tensors, self.grids[name]))
        about = facts(self.model, self.recipe, self.hyper, self.sources, self.sites)
        artifacts.write_manifest(directory, list(self.parts), grids=self.grids, **about)
        write_record(directory, self.report, next(self.model.parameters()).device)
        return directory

    def export(self, kind: str, directory: str | Path, example: Tensor | Mapping[str, Tensor] | None = None) -> Path:
        """Write the network in a format that others load.

        Args:
            kind: ``compressed-tensors``, a directory for ``transformers`` (language models; weights of 4 or 8 bit, or 8
                bit with activations of 8), ``onnx``, one file with QDQ nodes for onnxruntime (weights of at most 8 bit,
                activations of none or 8), or ``torch``, a state dict of dequantized weights in safetensors.
            directory: new, or empty.
            example: a batch as the model is called with, a tensor or a mapping of names; ``onnx`` alone needs it.

        Raises:
            InputError: what the format can't hold, with the reason; a package that is missing; or a directory with
                something in it. Nothing is written then.
        """
        directory = Path(directory)
        if directory.exists() and any(directory.iterdir()):
            raise InputError(f"{directory}: not empty; choose another directory for the export")
        module = look_up("export", EXPORTS, kind)
        try:
            write = importlib.import_module(module).write
        except ModuleNotFoundError as error:
            raise InputError(
                f"export {kind}: needs the package {error.name}; install it (make install has it)"
            ) from error
        write(self, directory, *([] if example is None else [example]))
        return directory


@torch.no_grad()
def load(directory: str | Path, model: nn.Module, device: str | torch.device = "cpu") -> Quantized:
    """Read a network that :meth:`Quantized.save` wrote.

    Args:
        directory: where it is.
        model: of the same architecture, with any weights; it becomes the quantized network.
        device: where to put it.

    Raises:
        InputError: damaged files, or made of another architecture.
    """
    directory = Path(directory)
    manifest = artifacts.read_manifest(directory)
    try:
        recipe, hyper = Recipe.model_validate(manifest["recipe"]), Hyper.model_validate(manifest["hyper"])
        sources, grids, stored = (manifest[key] for key in ("hyper_sources", "grids", "sites"))
    except (KeyError, ValueError) as error:
        raise InputError(f"{directory}: no network that flexround.quantize saved ({error})") from error
    prepare(model.eval(), [step for step in recipe.preprocess if step in STRUCTURAL])
    modules = dict(model.named_modules())
    if lost := [name for name, _ in stored if name not in modules]:
        raise InputError(f"{directory}: made for another model, which has {lost[0]}; give the same architecture")
    whole = Block("network", model, tuple(Site(modules[name], where) for name, where in stored))
    result.load(directory, model, [whole], torch.device(device))
    model.to(device)
    parts = {name: packing.read(directory / name) for name in grids}
    report = artifacts.read_json(directory / RECORD)["blocks"]
    return Quantized(model, recipe, hyper, sources, report, parts, grids, [(name, where) for name, where in stored])


def facts(
    model: nn.Module,
    recipe: Recipe,
    hyper: Hyper,
    sources: dict[str, str],
    sites: Sites,
) -> dict[str, Any]:
    """Return what the manifest says of a network besides its files: what :func:`load` needs, and where it is from."""
    return {
        "sites": sites,
        "recipe": recipe.model_dump(mode="json"),
        "hyper": hyper.model_dump(mode="json"),
        "hyper_sources": sources,
        "architecture": type(model).__name__,
    }


def sites(model: nn.Module, recipe: Recipe, blocks: Sequence[Block]) -> Sites:
    """Return module and place of each activation that a recipe quantizes."""
    names = {module: name for name, module in model.named_modules()}
    return [(names[site.module], site.where) for block in blocks for site in block.sites] if recipe.a_bits else []


def write_record(directory: Path, report: list[dict[str, Any]], device: torch.device) -> None:
    """Write what a reconstruction found and took; it changes from run to run, so it is no part of the manifest."""
    artifacts.write_json(directory / RECORD, {"blocks": report, "environment": provenance.environment(device)})


def unquantized(model: nn.Module, parts: dict[str, dict[str, Tensor]]) -> list[str]:
    """Return the matrices and kernels that are stored as they were, but for embeddings."""
    stored = {key.partition("/")[2] for part in parts.values() for key in part if key.startswith(result.PARAMETER)}
    found = [(name, getattr(*place), place[0]) for name, place in places(model).items() if name in stored]
    return [name for name, value, owner in found if value.ndim > 1 and not isinstance(owner, nn.Embedding)]
