"""A quantized network in memory, and on disk."""

import copy
import dataclasses
import logging
from collections.abc import Collection, Container, Mapping, Set
from pathlib import Path
from typing import Any

import torch
from pydantic import AliasPath, Field
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
from flexround.models.tensors import outputs_apart, tensors, unchanged, untied
from flexround.models.trace import first_output
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
READERS = {  # functions (directory, input) -> output of the format's own tool
    "compressed-tensors": "flexround.library.compressed:run",
    "onnx": "flexround.library.onnx_file:run",
}


class Saved(Facts):
    """The facts about a network, and the content of the record beside its manifest."""

    report: list[dict[str, Any]] = Field(validation_alias=AliasPath("record", "blocks"))
    environment: dict[str, Any] = Field(validation_alias=AliasPath("record", "environment"))
    input: probe.Input | None = Field(None, validation_alias=AliasPath("record", "input"))
    output: probe.Output | None = Field(None, validation_alias=AliasPath("record", "output"))

    def network(self, model: nn.Module, parts: Mapping[str, codes.Part], fresh: nn.Module | None = None) -> "Quantized":
        """Return the network from a model with or without values, stored parts, and the ``fresh`` model."""
        settings, facts = (self.recipe, self.hyper, self.hyper_sources), (self.folded, self.origin)
        return Quantized(model, *settings, self.report, parts, *facts, self.environment, self.input, fresh)


def refuse_narrow(kind: str, ranges: Mapping[str, tuple[int, int]]) -> None:
    """Raise InputError if a grid of activations (given the least and largest code by key) does not have 8 bit.

    First and last layers have their own settings; a format without separate clipping would drop these settings.
    """
    for key, (low, high) in ranges.items():
        if key.startswith(codes.ACTIVATION) and (bits := (high - low).bit_length()) != codes.BYTE:
            raise InputError(
                f"export {kind}: {key.removeprefix(codes.ACTIVATION)} has activations of {bits} bit, the format 8; "
                "quantize with 8 bit there too: stem_output_bits=8, head_input_bits=8"
            )


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
            check: whether the format's own tool, if installed, reads the files and runs on an input.

        Raises:
            InputError: the format can't hold the network (with the reason), a package is missing, the tool computes
                something else, or the directory is not empty. Nothing is written then.
        """
        look_up("export", EXPORTS, kind)
        with artifacts.new_directory(Path(directory)) as new:
            write_export(self, kind, new, *([] if example is None else [example]))
            if check:
                rows = 1 if example is None else 1 + len(first_output(example))  # another batch size than traced
                verified(self, kind if kind in READERS else None, new, rows)
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


def verified(
    quantized: Quantized, kind: str | None = None, directory: Path = Path(), rows: int = 1
) -> probe.Output | None:
    """Compare a network's output with an export reader's, or with the network that ``load`` makes from its parts.

    Args:
        quantized: the network.
        kind: kind of the export, one of ``READERS``; None for ``load``.
        directory: directory of the files.
        rows: rows of the input.

    Returns:
        The network's output; None if the comparison is impossible or the network can't take a drawn input.

    Raises:
        InputError: the outputs differ by more than last bits or the format's rounding.
    """
    model, fresh, first = quantized.model, quantized.fresh, next(quantized.model.parameters(), torch.empty(0))
    if quantized.input is None or fresh is None or first.is_meta:
        return None
    x = quantized.input.draw(rows)
    came = dict(fresh.named_buffers()) | {k: v for part in quantized.parts.values() for k, v in part.parameters.items()}
    with unchanged(model), torch.no_grad():
        for name, buffer in model.named_buffers():  # original values: calls may have updated the buffers
            if name in came and not came[name].is_meta:
                buffer.copy_(came[name])
        try:
            wanted = probe.run(model, x)
        except Exception as error:  # of any kind: it is the user's code
            structure.refuse_memory(error)
            log.info("%s: can't take a random input (%s), so nothing written is compared", type(model).__name__, error)
            return None
    output = probe.Output.of(model, wanted)
    if kind is None:
        most, own = 0.0 if first.device.type == "cpu" else probe.CLOSE, next(fresh.parameters(), first).dtype
        made = copy.deepcopy(fresh) if own == first.dtype else copy.deepcopy(fresh).to(first.dtype)
        refill(made, quantized._facts, quantized.parts.values(), first.device)
        apart = outputs_apart(probe.run(made, x), wanted)
    else:
        try:
            found = tensors(imports.load(READERS[kind])(quantized, directory, x))
        except Exception as error:  # of any kind: from the tool or the model's own code
            raise InputError(f"export {kind}: the written files can't be run: {error}") from error
        fewer = [one[: len(other)] for one, other in zip(tensors(wanted), found, strict=False)]  # for a fixed batch
        apart, most = outputs_apart(found[: len(fewer)], fewer), probe.tolerance(output.machine, bool(quantized.sites))
    if apart > most:
        raise InputError(
            f"{type(model).__name__}: {kind or 'load'} would compute something else, by {apart:.2g} of the largest "
            "output: the model was changed after it was quantized, keeps numbers outside its parameters and buffers, "
            "or computes otherwise than the class that is read"
        )
    return output


@torch.no_grad()
def refill(
    model: nn.Module, facts: Facts, parts: Collection[codes.Part], device: torch.device, source: str = "the network"
) -> None:
    """Turn an original model into the network of stored parts, in place.

    Args:
        model: model with or without values, of any floating types, which stay.
        facts: facts about the network.
        parts: all stored parts.
        device: target device.
        source: name of the parts' source, for messages.
    """
    separate_projections(model.eval())
    fold_bn.restructure(model, facts.folded)
    prepare(model, [step for step in facts.recipe.preprocess if step in STRUCTURAL], statistics={})
    whole = _whole(model, {key for part in parts for key in part.quantized})
    codes.fill(parts, model, [whole], device, None, source)
    model.to(device)


def read_saved(directory: Path) -> Saved:
    """Return the facts and the record from a directory written by ``save``."""
    content = artifacts.read_manifest(directory) | {"record": artifacts.read_json(directory / RECORD)}
    return validate(Saved, content, str(directory))


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
    refill(model, saved, parts.values(), where, str(directory))
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
    names, edited = {path.name for path in directory.iterdir()}, False
    try:
        manifest = artifacts.read_manifest(directory)
        if card.FILE in names:
            edited = artifacts.sha256(directory / card.FILE) != artifacts.read_json(directory / RECORD)["card"]
    except (InputError, OSError, KeyError, TypeError):
        return False
    known = {*manifest["files"], "manifest.json", RECORD, card.FILE}
    return "folded" in manifest and not edited and names <= known


def _whole(model: nn.Module, quantized: Set[str]) -> Block:
    """Return a model as one block with its sites from the stored network."""
    names = {module: name for name, module in model.named_modules()}
    possible = [Site(module, where) for module in names for where in ("input", "output")]
    return Block("network", model, tuple(site for site in possible if codes.site_key(names, site) in quantized))


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
    """Write a state dict of dequantized weights in safetensors.

    Batch norms are folded, and PyTorch's attention has a layer for each projection.

    Args:
        quantized: network whose parts are read one at a time; its model, with or without values, has the types of
            the written tensors.
        directory: directory of the files.
    """
    writer, owners = Writer(directory), untied(quantized.model)
    for part in quantized.parts.values():
        for name, value in part.state().items():
            if name in owners:
                writer.add(name, value.to(getattr(*owners[name]).dtype))
    writer.finish()
