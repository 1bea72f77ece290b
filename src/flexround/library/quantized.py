"""A quantized network in memory, and on disk."""

import contextlib
import copy
import dataclasses
import re
from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Any

import torch
from pydantic import AliasPath, Field
from torch import Tensor, nn

from flexround import imports
from flexround.errors import InputError, SettingsError, look_up
from flexround.io import artifacts
from flexround.library import card, probe
from flexround.library.card import Facts
from flexround.library.settings import unfit
from flexround.models.blocks import Block, Site
from flexround.models.replay import first_output
from flexround.models.surgery import fold_bn
from flexround.models.surgery.attention import separate_projections
from flexround.models.surgery.preprocess import prepare
from flexround.models.tensors import outputs_apart, tensors, unchanged, untied
from flexround.models.weights import Writer
from flexround.quant.activation import ActivationQuantizer
from flexround.reconstruct import codes
from flexround.reconstruct.network import STRUCTURAL
from flexround.settings.schema import Hyper, Recipe
from flexround.settings.validation import validate

RECORD = "record.json"
QUANTIZED = "_quantized_by_flexround"  # attribute of each module of a quantized network; copies of it have it, too
EXPORTS = {
    "compressed-tensors": "flexround.library.compressed:write",
    "onnx": "flexround.library.onnx_file:write",
    "torch": "flexround.library.quantized:write_state_dict",
}
READERS = {  # functions of a directory and an input that return what the format's own tool computes
    "compressed-tensors": "flexround.library.compressed:run",
    "onnx": "flexround.library.onnx_file:run",
}


class Saved(Facts):
    """The facts of a network, and what the record beside its manifest has."""

    report: list[dict[str, Any]] = Field(validation_alias=AliasPath("record", "blocks"))
    environment: dict[str, Any] = Field(validation_alias=AliasPath("record", "environment"))
    input: probe.Input | None = Field(None, validation_alias=AliasPath("record", "input"))
    output: probe.Output | None = Field(None, validation_alias=AliasPath("record", "output"))

    def network(self, model: nn.Module, parts: Mapping[str, codes.Part], fresh: nn.Module | None = None) -> "Quantized":
        """Return the network: a model, with or without values, what is stored of each block, and its ``fresh`` one."""
        settings, facts = (self.recipe, self.hyper, self.hyper_sources), (self.folded, self.origin)
        return Quantized(model, *settings, self.report, parts, *facts, self.environment, self.input, fresh)


def refuse_narrow(kind: str, ranges: Mapping[str, tuple[int, int]]) -> None:
    """Raise InputError if a grid of activations, given the least and the largest code by key, has not 8 bit.

    First and last layers have settings of their own, and formats without a clip of its own would drop theirs.
    """
    for key, (low, high) in ranges.items():
        if key.startswith(codes.ACTIVATION) and (bits := (high - low).bit_length()) != codes.BYTE:
            raise InputError(
                f"export {kind}: {key.removeprefix(codes.ACTIVATION)} has activations of {bits} bit, the format 8; "
                "quantize with 8 bit there too: stem_output_bits=8, head_input_bits=8"
            )


def input_key(layer: str, stored: Container[str], report: list[dict[str, Any]]) -> str:
    """Return the key of what a layer reads: at it, or at the module around it; "" if its input is in floating point.

    A module around it may quantize another tensor than the layer reads, which the ``report`` tells.
    """
    name = "" if any(layer in record.get("inputs", ()) for record in report) else layer
    while name:
        if (key := f"{codes.ACTIVATION}{name}/input") in stored:
            return key
        name = name.rpartition(".")[0]
    return ""


@dataclasses.dataclass(repr=False)
class Quantized:
    """What :func:`flexround.quantize` returns; call it as the model is called.

    Attributes:
        model: the network with dequantized weights, batch norms folded, and quantizers of activations if the recipe has
            them; in evaluation mode, on the device where it was made.
        recipe, hyper: all settings.
        sources: of each hyper-parameter, where its value comes from.
        report: a dict for each block and phase: ``block``, ``seconds``, ``peak_mb``, and the errors ``error_rtn``
            (round-to-nearest), ``error_soft`` (as learned) and ``error_hard`` (as stored) of its output: |difference|
            to the power ``hyper.loss_p``, summed over the channels of images or the tokens of a text, averaged over
            the rest.
        parts: what is stored of each block, by the name of its file; in memory, or read when it is asked for.
        folded: the convolution of each batch norm that was folded, by their names.
        origin: what the network was made of: ``recipe``, ``rounding``, ``base_model`` (None if it has no name), the
            shape of the ``samples``, and clauses on what is ``left`` without learning.
        environment: versions and device with which it was made.
        input: what an input looks like; None if that is not known.
        fresh: the model as it was given, without values, for the check of what is written; None for no check.
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
        for module in self.model.modules():  # parts of the network are refused by `quantize`, too
            setattr(module, QUANTIZED, True)

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Return what the model returns."""
        return self.model(*arguments, **keywords)

    def __repr__(self) -> str:
        """Return a line."""
        bits = f"W{self.recipe.w_bits}" + (f"A{self.recipe.a_bits}" if self.recipe.a_bits else "")
        return f"Quantized({type(self.model).__name__}, {self.origin.rounding} {bits}, {len(self.codes())} layers)"

    def codes(self) -> dict[str, codes.Stored]:
        """Return the integer codes, step and zero point of each quantized weight by the name of its module."""
        stored = [item for part in self.parts.values() for item in part.quantized.items()]
        return {key.removeprefix(codes.WEIGHT): one for key, one in stored if key.startswith(codes.WEIGHT)}

    @property
    def sites(self) -> list[tuple[str, str]]:
        """The module and ``input`` or ``output`` of each quantized activation."""
        keys = [key for part in self.parts.values() for key in part.quantized if key.startswith(codes.ACTIVATION)]
        places = [key.removeprefix(codes.ACTIVATION).rpartition("/") for key in keys]
        return [(module, where) for module, _, where in places]

    @property
    def _facts(self) -> Facts:
        """What the manifest of the saved network says of it."""
        return Facts.model_validate({**vars(self), "hyper_sources": self.sources})

    def save(self, directory: str | Path, check: bool = True) -> Path:
        """Write the network as the suite stores its own: packed codes, steps, what is not quantized, a manifest.

        README.md beside them is a model card; it may be edited without harm to ``load``.

        Args:
            directory: missing, empty, or written by ``save`` and unchanged since, its README.md too; it is then
                replaced. Whatever fails, it stays as it was.
            check: whether the output of what ``load`` would make of it is compared with the network's, on one input.

        Raises:
            InputError: the directory can't be written, or holds something else; or a model that ``load`` reads computes
                something else, as it does if this one was changed since.
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
        """Write the network in a format that others load, with a model card (README.md) unless it is ``onnx``.

        Args:
            kind: ``compressed-tensors``, a directory for ``transformers`` (language models; weights of 4 or 8 bit, or 8
                bit with activations of 8), ``onnx``, one file with QDQ nodes for onnxruntime (weights of at most 8 bit,
                activations of none or 8), or ``torch``, a state dict of dequantized weights in safetensors.
            directory: new, or empty.
            example: a batch as the model is called with, a tensor or a mapping of names; ``onnx`` alone needs it.
            check: whether the tool that the format is for reads what was written and runs on an input, if it is
                installed.

        Raises:
            InputError: what the format can't hold, with the reason; a package that is missing; a tool that computes
                something else; or a directory with something in it. Nothing is written then.
        """
        look_up("export", EXPORTS, kind)
        with artifacts.new_directory(Path(directory)) as new:
            write_export(self, kind, new, *([] if example is None else [example]))
            if check:
                rows = 1 if example is None else 1 + len(first_output(example))  # other than it was traced with
                verified(self, kind if kind in READERS else None, new, rows)
        return Path(directory)


def write_export(quantized: Quantized, kind: str, directory: Path, *example: Tensor | Mapping[str, Tensor]) -> None:
    """Write the files of an export, and unless it is ``onnx`` a model card; arguments and errors as in ``export``."""
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
    """Compare a network with what the reader of an export computes, or with what ``load`` makes of its parts (None).

    Args:
        quantized: the network.
        kind: of the export, one of ``READERS``.
        directory: of its files.
        rows: of the input.

    Returns:
        What the network computes; None if there is nothing to compare it with.

    Raises:
        InputError: they differ by more than last bits, or what the format rounds.
    """
    model, fresh, first = quantized.model, quantized.fresh, next(quantized.model.parameters(), torch.empty(0))
    if quantized.input is None or fresh is None or first.is_meta:
        return None
    x = quantized.input.draw(rows)
    came = dict(fresh.named_buffers()) | {k: v for part in quantized.parts.values() for k, v in part.parameters.items()}
    with unchanged(model), torch.no_grad():
        for name, buffer in model.named_buffers():  # as they came: calls of the network may have updated them
            if name in came and not came[name].is_meta:
                buffer.copy_(came[name])
        wanted = probe.run(model, x)
    output = probe.Output.of(model, wanted)
    if kind is None:
        made, most = copy.deepcopy(fresh), 0.0 if first.device.type == "cpu" else probe.CLOSE
        own = next(fresh.parameters(), first).dtype
        facts = quantized.folded, quantized.recipe.preprocess, quantized.parts.values(), first.device
        changed = None if own == first.dtype else first.dtype
        apart = refill(made, *facts, changed, x, lambda found: outputs_apart(found, wanted))
    else:
        try:
            found = tensors(imports.load(READERS[kind])(quantized, directory, x))
        except Exception as error:  # of any kind: of the tool or the model's own code
            raise InputError(f"export {kind}: what was written can't be run: {error}") from error
        fewer = [one[: len(other)] for one, other in zip(tensors(wanted), found, strict=False)]  # of a fixed batch
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
    model: nn.Module,
    folded: Mapping[str, str],
    preprocess: Sequence[str],
    parts: Collection[codes.Part],
    device: torch.device,
    kind: torch.dtype | None,
    x: Tensor | None,
    apart: Callable[[Any], float],
    source: str = "the network",
) -> float:
    """Make a model, as it was given, the network of stored parts, in place; return how far its output is off.

    If it is off, it is filled again: some networks change their weights in their first forward pass, such as those that
    merge adapters, and must do so before.

    Args:
        model: with any values or none.
        folded, preprocess: see ``Quantized`` and ``Recipe``.
        parts: all.
        device: where to put it.
        kind: type of all parameters; None for that which each has.
        x: an input (N, ...); None for no look at the output.
        apart: how far an output is off.
        source: of the parts, for messages.
    """
    if kind is not None:
        model.to(kind)
    separate_projections(model.eval())
    fold_bn.restructure(model, folded)
    prepare(model, [step for step in preprocess if step in STRUCTURAL], statistics={})
    whole, far = _whole(model, {key for part in parts for key in part.quantized}), 0.0
    for _ in "12":
        codes.fill(parts, model, [whole], device, kind, source)
        model.to(device)
        far = 0.0 if x is None else apart(probe.run(model, x))
        if not far:
            break
    return far


def read_saved(directory: Path) -> Saved:
    """Return what a directory says of its network; InputError if ``save`` did not write it."""
    with _remedied():
        content = artifacts.read_manifest(directory) | {"record": artifacts.read_json(directory / RECORD)}
    try:
        return validate(Saved, content, str(directory))
    except SettingsError as error:
        raise InputError(f"{error}; Quantized.save writes it otherwise") from error


@torch.no_grad()
def load(directory: str | Path, model: nn.Module, device: str | torch.device = "cpu", check: bool = True) -> Quantized:
    """Read a network that :meth:`Quantized.save` wrote.

    Args:
        directory: where it is.
        model: of the same architecture, with any weights, of any floating type, which stays; it becomes the quantized
            network.
        device: where to put it.
        check: whether its output is compared with the stored one, on one input.

    Raises:
        InputError: damaged files; ``model`` is then as it was. Or one of another architecture, or with other settings,
            which computes something else with these tensors.
    """
    if not isinstance(directory, str | Path) or not isinstance(model, nn.Module):
        given = f"{type(directory).__name__}, {type(model).__name__}"
        raise InputError(f"load({given}): give the directory first, then a model")
    directory = Path(directory)
    saved = read_saved(directory)
    if any(isinstance(module, ActivationQuantizer) for module in model.modules()):
        raise InputError(f"{type(model).__name__}: quantizes activations already; give load a new model")
    model = merged(model)
    fresh, where = probe.outline(model), torch.empty(0, device=device).device
    with _remedied():
        parts = {path.name: codes.read(path) for path in codes.files(directory)}
    x = saved.input.draw() if check and saved.input is not None else None

    def apart(output: Any) -> float:
        return saved.output.apart(probe.Output.of(model, output), bool(saved.recipe.a_bits)) if saved.output else 0.0

    try:
        facts = saved.folded, saved.recipe.preprocess, parts.values()
        far = refill(model, *facts, where, None, x, apart, str(directory))
    except (AttributeError, RuntimeError, TypeError, ValueError, IndexError) as error:  # of the model's own code
        raise InputError(f"{directory}: made for another model ({error})") from error
    if far:
        raise InputError(
            f"{directory}: made for another model: the given one computes something else with its tensors, by "
            f"{far:.2g} of the largest output; give one with the same settings"
        )
    return saved.network(model, parts, fresh)


def merged(model: nn.Module) -> nn.Module:
    """Return a model with its adapters merged into its weights, if it is one of PEFT's; else the model."""
    merge = getattr(model, "merge_and_unload", None)
    return merge() if callable(merge) else model


@contextlib.contextmanager
def _remedied() -> Iterator[None]:
    """Say of a directory of the user's what helps: no command made it that would make it again once it is deleted."""
    try:
        yield
    except InputError as error:
        way = "give a directory that save wrote, or save the network again"
        raise InputError(re.sub("delete .* and run the same command again", lambda _: way, str(error))) from error


def _saved(directory: Path) -> bool:
    """Whether a directory holds a network that was saved here, as it was saved, and nothing else."""
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
    """Return a model as one block with those sites of a stored network that it has."""
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
    """Write the model card, what a reconstruction found and took, and what the network computes of an input.

    All change from run to run, and the card may be edited, so they are no part of the manifest.
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
        quantized: its parts are gone through one at a time; its model, with or without values, has tensors of the types
            in which they are written.
        directory: of the files.
    """
    writer, owners = Writer(directory), untied(quantized.model)
    for part in quantized.parts.values():
        for name, value in part.state().items():
            if name in owners:
                writer.add(name, value.to(getattr(*owners[name]).dtype))
    writer.finish()
