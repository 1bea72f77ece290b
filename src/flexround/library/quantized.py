"""A quantized network in memory, and on disk."""

import copy
import dataclasses
import logging
from collections.abc import Collection, Container, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from flexround import imports
from flexround.errors import InputError, look_up
from flexround.io import artifacts
from flexround.library import card, probe
from flexround.library.card import Facts
from flexround.library.settings import unfit
from flexround.models import structure
from flexround.models.blocks import Block, Site
from flexround.models.surgery import fold_bn
from flexround.models.surgery.attention import separate_projections
from flexround.models.surgery.preprocess import prepare
from flexround.models.tensors import outputs_apart, untied
from flexround.models.weights import Writer
from flexround.quant.activation import ActivationQuantizer
from flexround.reconstruct import codes
from flexround.reconstruct.network import STRUCTURAL
from flexround.settings.schema import Hyper, Recipe
from flexround.settings.validation import validate

log = logging.getLogger(__name__)
RECORD = "record.json"
QUANTIZED = "_quantized_by_flexround"  # attribute of each module of a quantized network and of its copies
EXPORTS = {
    "compressed-tensors": "flexround.library.compressed:write",
    "onnx": "flexround.library.onnx_file:write",
    "torch": "flexround.library.quantized:write_state_dict",
}


class Saved(Facts):
    """The facts about a network, and the content of the record beside its manifest."""

    blocks: list[dict[str, Any]]
    environment: dict[str, Any]
    input: probe.Input | None = None
    output: probe.Output | None = None

    def network(self, model: nn.Module, parts: Mapping[str, codes.Part], fresh: nn.Module | None = None) -> "Quantized":
        """Return the network from a model with or without values, stored parts, and the ``fresh`` model."""
        settings, facts = (self.recipe, self.hyper, self.hyper_sources), (self.folded, self.origin)
        return Quantized(model, *settings, self.blocks, parts, *facts, self.environment, self.input, fresh)


def input_key(layer: str, stored: Container[str], report: list[dict[str, Any]]) -> str:
    """Return the key of a layer's input, at the layer or the module around it; "" for an input in floating point.

    The module around it may quantize another tensor than the layer reads; the ``report`` tells.
    """
    name = "" if any(layer in record.get("inputs", ()) for record in report) else layer
    while name:
        if (key := f"{codes.ACTIVATION}{name}/input") in stored:
            return key
        name = name.rpartition(".")[0]
    return ""


@dataclasses.dataclass(repr=False)
class Quantized:
    """A quantized network, returned by :func:`flexround.quantize`; call it like the model.

    Attributes:
        model: the network with dequantized weights, folded batch norms, and quantizers of activations if the recipe
            has them; in evaluation mode, on the device of the reconstruction.
        recipe, hyper: all settings.
        sources: source of each hyper-parameter's value.
        report: a dict for each block and phase: ``block``, ``seconds``, ``peak_mb``, and the errors ``error_rtn``
            (round-to-nearest), ``error_soft`` (as learned) and ``error_hard`` (as stored) of its output: |difference|
            to the power ``hyper.loss_p``, summed over the channels of images or the tokens of a text, averaged over
            the rest.
        parts: the stored tensors of each block, by its file's name; in memory, or read when accessed.
        folded: names of folded batch norms, each with its convolution's name.
        origin: the network's ``recipe``, ``rounding``, ``base_model`` (None without a name), the shape of its
            ``samples``, and clauses about the layers ``left`` without learning.
        environment: versions and device of the reconstruction.
        input: shape, type and range of its inputs; None if unknown.
        fresh: the given model without values, for the check of written files; None for no check.
    """

    model: nn.Module
    recipe: Recipe
    hyper: Hyper
    sources: dict[str, str]
    report: list[dict[str, Any]]
    parts: Mapping[str, codes.Part]
    folded: dict[str, str]
    origin: card.Origin
    environment: dict[str, Any]
    input: probe.Input | None = None
    fresh: nn.Module | None = None

    def __post_init__(self) -> None:
        for module in self.model.modules():  # `quantize` also refuses parts of the network
            setattr(module, QUANTIZED, True)

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Return the model's output."""
        return self.model(*arguments, **keywords)

    def __repr__(self) -> str:
        """Return a summary on one line."""
        bits = f"W{self.recipe.w_bits}" + (f"A{self.recipe.a_bits}" if self.recipe.a_bits else "")
        return f"Quantized({type(self.model).__name__}, {self.origin.rounding} {bits}, {len(self.codes())} layers)"

    def codes(self) -> dict[str, codes.Stored]:
        """Return the integer codes, step and zero point of each quantized weight, by its module's name."""
        stored = [item for part in self.parts.values() for item in part.quantized.items()]
        return {key.removeprefix(codes.WEIGHT): one for key, one in stored if key.startswith(codes.WEIGHT)}

    @property
    def sites(self) -> list[tuple[str, str]]:
        """Each quantized activation: the module, and ``input`` or ``output``."""
        keys = [key for part in self.parts.values() for key in part.quantized if key.startswith(codes.ACTIVATION)]
        places = [key.removeprefix(codes.ACTIVATION).rpartition("/") for key in keys]
        return [(module, where) for module, _, where in places]

    @property
    def _facts(self) -> Facts:
        """The facts for the manifest of the saved network."""
        return Facts.model_validate({**vars(self), "hyper_sources": self.sources})

    def save(self, directory: str | Path, check: bool = True) -> Path:
        """Write the network in the suite's own format: packed codes, steps, other tensors, a manifest.

        README.md is a model card; you may edit it without harm to ``load``.

        Args:
            directory: missing, empty, or written by ``save`` and unchanged since (including README.md); ``save``
                replaces it. After a failure it is unchanged.
            check: whether to compare this network with the network that ``load`` would return, on one input.

        Raises:
            InputError: the directory can't be written, or holds other files; or the network that ``load`` would return
                computes something else, for example because ``model`` was changed.
        """
        with artifacts.new_directory(Path(directory), _saved) as new:
            output = verified(self) if check else None
            for name, part in self.parts.items():
                artifacts.write_bytes(new / name, codes.encode(part))
            artifacts.write_manifest(new, list(self.parts), **self._facts.model_dump(mode="json"))
            write_record(new, self._facts, self.report, self.model, self.environment, self.input, output)
        return Path(directory)

    def export(
        self,
        kind: str,
        directory: str | Path,
        example: Tensor | Mapping[str, Tensor] | None = None,
        check: bool = True,
    ) -> Path:
        """Write the network in another tool's format, with a model card (README.md) unless the format is ``onnx``.

        Args:
            kind: ``compressed-tensors``, a directory for ``transformers`` (language models; weights of 4 or 8 bit, or 8
                bit with activations of 8), ``onnx``, one file with QDQ nodes for onnxruntime (weights of at most 8 bit,
                activations of none or 8), or ``torch``, a state dict of dequantized weights in safetensors.
            directory: new or empty.
            example: a batch for the model, as a tensor or a mapping of names; only ``onnx`` needs it.
            check: as in ``save``; and whether transformers runs ``compressed-tensors``, on one input.

        Raises:
            InputError: the format can't hold the network (with the reason), a package is missing, ``model`` was
                changed, or the directory is not empty. Nothing is written then.
        """
        look_up("export", EXPORTS, kind)
        with artifacts.new_directory(Path(directory)) as new:
            if check:
                verified(self)
            write_export(self, kind, new, *([] if example is None else [example]))
            if check and kind == "compressed-tensors":
                imports.load("flexround.library.compressed:check")(self, new)
        return Path(directory)


def write_export(quantized: Quantized, kind: str, directory: Path, *example: Tensor | Mapping[str, Tensor]) -> None:
    """Write an export's files, and a model card unless ``kind`` is ``onnx``; arguments and errors as in ``export``."""
    if reason := unfit(quantized.recipe, quantized.hyper).get(kind):
        raise InputError(f"export {kind}: {reason}")
    try:
        write = imports.load(EXPORTS[kind])
    except ModuleNotFoundError as error:
        raise InputError(f"export {kind}: needs the package {error.name}; pip install 'flexround[export]'") from error
    write(quantized, directory, *example)
    if kind != "onnx":
        card.write(directory, kind, quantized._facts, quantized.report, quantized.model)


def verified(quantized: Quantized) -> probe.Output | None:
    """Compare a network's output with that of the network that ``load`` makes from its parts; InputError: they differ.

    Return the output; None for no comparison, for example if the network can't take a drawn input.
    """
    model, fresh = quantized.model, quantized.fresh
    if quantized.input is None or fresh is None:
        return None
    x, first = quantized.input.draw(), next(model.parameters(), torch.empty(0))
    try:
        output = probe.run(model, x)
    except Exception as error:  # of any kind: it is the user's code
        structure.refuse_memory(error)
        log.info("%s: can't take a random input (%s), so nothing written is compared", type(model).__name__, error)
        return None
    own = next(fresh.parameters(), first).dtype
    made = copy.deepcopy(fresh) if own == first.dtype else copy.deepcopy(fresh).to(first.dtype)
    refill(made, quantized._facts, quantized.parts.values(), first.device)
    apart = outputs_apart(probe.run(made, x), output)
    if apart > (0.0 if first.device.type == "cpu" else probe.CLOSE):
        raise InputError(
            f"{type(model).__name__}: load would return another network, by {apart:.2g} of the largest output: the "
            "model was changed after it was quantized, or keeps numbers outside its parameters and buffers"
        )
    return probe.Output.of(model, output)


@torch.no_grad()
def refill(model: nn.Module, facts: Facts, parts: Collection[codes.Part], device: torch.device) -> None:
    """Turn an original model, with or without values, into the network of stored parts, in place; types stay."""
    separate_projections(model.eval())
    fold_bn.restructure(model, facts.folded)
    prepare(model, [step for step in facts.recipe.preprocess if step in STRUCTURAL], statistics={})
    names, keys = (
        {module: name for name, module in model.named_modules()},
        {key for part in parts for key in part.quantized},
    )
    possible = [Site(module, where) for module in names for where in ("input", "output")]
    sites = tuple(site for site in possible if codes.site_key(names, site) in keys)
    codes.fill(parts, model, [Block("network", model, sites)], device, None)
    model.to(device)


def read_saved(directory: Path) -> Saved:
    """Return the facts and the record from a directory written by ``save``."""
    return validate(Saved, artifacts.read_manifest(directory) | artifacts.read_json(directory / RECORD), str(directory))


@torch.no_grad()
def load(directory: str | Path, model: nn.Module, device: str | torch.device = "cpu", check: bool = True) -> Quantized:
    """Read a network written by :meth:`Quantized.save`.

    Args:
        directory: directory of the network.
        model: model of the same architecture, with any weights, of any floating type, which stays; it becomes the
            quantized network.
        device: target device.
        check: whether to compare its output with the stored output, on one input.

    Raises:
        InputError: files are damaged (``model`` then stays unchanged), or a model with another architecture or other
            settings computes something else with these tensors.
        SettingsError: ``save`` did not write the manifest or the record.
    """
    directory = Path(directory)
    saved = read_saved(directory)
    if any(isinstance(module, ActivationQuantizer) for module in model.modules()):
        raise InputError(f"{type(model).__name__}: quantizes activations already; give load a new model")
    model = merged(model)
    fresh, where = probe.outline(model), torch.empty(0, device=device).device
    parts = {path.name: codes.read(path) for path in codes.files(directory)}
    refill(model, saved, parts.values(), where)
    if check and saved.input and saved.output:
        given = probe.Output.of(model, probe.run(model, saved.input.draw()))
        if far := saved.output.apart(given, bool(saved.recipe.a_bits)):
            raise InputError(
                f"{directory}: made for another model: the given one computes something else with its tensors, by "
                f"{far:.2g} of the largest output; give one with the same settings"
            )
    return saved.network(model, parts, fresh)


def merged(model: nn.Module) -> nn.Module:
    """Return a PEFT model with its adapters merged into its weights; return any other model unchanged."""
    merge = getattr(model, "merge_and_unload", None)
    return merge() if callable(merge) else model


def _saved(directory: Path) -> bool:
    """Whether a directory holds exactly the unchanged files of a saved network."""
    try:
        manifest, record = artifacts.read_manifest(directory), artifacts.read_json(directory / RECORD)
        same = "folded" in manifest and artifacts.sha256(directory / card.FILE) == record["card"]
    except (InputError, OSError, KeyError, TypeError):
        return False
    return same and {path.name for path in directory.iterdir()} <= {
        *manifest["files"],
        "manifest.json",
        RECORD,
        card.FILE,
    }


def write_record(
    directory: Path,
    facts: Facts,
    report: list[dict[str, Any]],
    model: nn.Module,
    environment: dict[str, Any],
    given: probe.Input | None = None,
    output: probe.Output | None = None,
) -> None:
    """Write the model card, and a record: report, environment, range of inputs, and output for a drawn input.

    The manifest lists neither file: the record changes from run to run, and users may edit the card.
    """
    card.write(directory, card.SAVED, facts, report, model)
    record: dict[str, Any] = {"blocks": report, "environment": environment}
    if given is not None and output is not None:
        record |= {"input": given.model_dump(mode="json"), "output": output.model_dump(mode="json")}
    artifacts.write_json(directory / RECORD, record | {"card": artifacts.sha256(directory / card.FILE)})


def write_state_dict(quantized: Quantized, directory: Path) -> None:
    """Write a state dict of dequantized weights, in the model's types, in safetensors; read one part at a time.

    Batch norms are folded, and PyTorch's attention has a layer for each projection.
    """
    writer, owners = Writer(directory), untied(quantized.model)
    for part in quantized.parts.values():
        for name, value in part.state().items():
            if name in owners:
                writer.add(name, value.to(getattr(*owners[name]).dtype))
    writer.finish()
