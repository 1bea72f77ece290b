"""Quantize a network of one's own by any recipe or rounding, with the engine that the suite's jobs run."""

import contextlib
import copy
import functools
import hashlib
import itertools
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.lazy import LazyModuleMixin
from tqdm import tqdm

from flexround import imports
from flexround.errors import InputError
from flexround.library import auto_blocks, card, code_digest, probe, settings
from flexround.library.quantized import QUANTIZED, Quantized, merged, refill
from flexround.library.samples import collect
from flexround.library.settings import Family
from flexround.machine import hardware, precision, provenance
from flexround.models import structure
from flexround.models.blocks import Block
from flexround.models.surgery import attach
from flexround.models.surgery.attach import weight_axes, weight_layers
from flexround.models.surgery.attention import separate_projections
from flexround.models.surgery.fold_bn import fold_as_traced
from flexround.models.surgery.preprocess import prepare
from flexround.models.tensors import outputs_apart, places, tensors, unchanged
from flexround.models.trace import traced
from flexround.quant.activation import ActivationQuantizer
from flexround.quant.rounding import Rounding
from flexround.reconstruct import cache, codes
from flexround.reconstruct.engine import left, reconstruct
from flexround.reconstruct.reconstruction import Reconstruction, Resident, checked
from flexround.reconstruct.state import MemoryState, State
from flexround.settings.params import refuse_unweighted
from flexround.settings.schema import Hyper, Recipe
from flexround.tasks.protocol import Inputs

log = logging.getLogger(__name__)
IN_PLACE = "call quantize with inplace=True to change the network itself"
LONG = 0.25  # hours
STEM, HEAD = ("stem_bits", "stem_output_bits"), ("head_bits", "head_input_bits")
Cut = Callable[[nn.Module], Sequence[Block]]


def quantize(
    model: nn.Module,
    samples: Any,
    recipe: str | Recipe,
    *,
    scale: str | None = None,
    blocks: Sequence[str] | Cut | None = None,
    rounding: type[Rounding] | None = None,
    seed: int = 0,
    device: str | torch.device | None = None,
    state: str | Path | None = None,
    progress: bool = True,
    inplace: bool = False,
    gpu_cache_mb: int | None = None,
    check: bool = True,
    **hyper: Any,
) -> Quantized:
    """Quantize a network after training, block by block (FlexRound, equation 2; BRECQ's or QDrop's setting).

    Every block with weights is learned. One warning names what stays at round-to-nearest or in floating point.

    Args:
        model: any module whose parts run one after the other, with parameters of any floating type: it is quantized in
            float32 and comes back in its own. Batch norms are folded.
        samples: calibration inputs without labels: images float (N, C, H, W), or whatever the model reads; token ids
            int64 (N, T); a mapping of Hugging Face's names; a list of such batches; or a DataLoader.
        recipe: a name of params/recipes.yaml (``b-flexround-w4``, ``q-flexround-w4a4``, ...) or a ``flexround.Recipe``.
        scale: whose hyper-parameters are the defaults: ``paper``; ``short``, 200 to 2,000 iterations at the rates that
            suit them; or a YAML file that extends one of these. None: ``paper``, with a warning if it takes hours on a
            CPU.
        blocks: how the network is cut: names of modules, or a function of the (folded) model that returns
            ``flexround.Block`` objects. None: by architecture if the suite knows it and its blocks compute what the
            network does, else along its parts, with a line in the log that says which. It is compared on every sample.
        rounding: a class to use in the place of the recipe's rounding, with the recipe's ``options``.
        seed: of the draws of batches.
        device: where it runs; None for a GPU if there is one.
        state: directory for finished blocks; the same call goes on there after an interruption. None: nothing is
            written to the disk.
        progress: whether to show a bar.
        inplace: change ``model`` itself, also if an error ends the call, though nothing stays attached to it then; else
            it is copied and stays as it is.
        gpu_cache_mb: of the GPU's memory for activations, which are on the host if they take more; None for half of it.
        check: whether ``save`` and ``export`` compare what they write with the network, on one input, and whether it
            is known before anything is learned that the network can be saved.
        **hyper: hyper-parameters that differ from the scale's for this recipe and architecture, such as ``iters`` or
            ``lr``; class ``Hyper`` of ``settings/schema.py`` has them all. ``Quantized.hyper`` and ``sources`` say what
            was used and why.

    Raises:
        SettingsError: an unknown scale, recipe, hyper-parameter or value, or a regularizer that has no weight.
        InputError: samples, a model (quantized already, layers that share a weight, ...) or a cut that can't be used,
            or too little memory for a block, with what lowers it.
        NumericalError: NaN or Inf, with block and iteration.
    """
    _refuse(model)
    with precision.neutral() as contexts:
        where = settings.chosen_device(device)
        contexts.enter_context(precision.default(where))
        inputs = collect(samples).trimmed()
        params = settings.params(scale or "paper")
        name, given = settings.recipe(params, recipe)
        family = settings.family(model, inputs.x)
        values, sources = settings.resolve(params, name, given, family, len(inputs.x), where, hyper)
        made = settings.rounding(params, given) if rounding is None else rounding
        made = checked(made, str(given.rounding) if rounding is None else repr(rounding))
        if made.regularizer is not Rounding.regularizer:
            refuse_unweighted(values, sources, made.__qualname__)

        def say(blocks: int, seconds: float) -> None:
            hours = seconds * blocks * values.iters / 3600
            if hours > LONG and not warned:
                short = settings.resolve(settings.params("short"), name, given, family, len(inputs.x), where, hyper)[0]
                fewer = hours * short.iters * short.batch / (values.iters * values.batch)
                warned.append(f"the paper's iterations take about {hours:.1f} hours here, scale='short' {fewer:.1f}")
                warnings.warn(warned[0], stacklevel=2)

        warned, unasked = list[str](), scale is None and "iters" not in hyper

        def attempt() -> tuple[Reconstruction, Quantized]:
            network = merged(model if inplace else _copied(model, inputs.x[:1]))
            _make_writable(network)
            fresh = probe.outline(network) if check else None
            network = network.eval().to(where)
            with _float32(network):
                tried = f"{type(network).__name__}, compared with its blocks"
                with hardware.enough(tried, "samples of smaller size"):
                    folded = _fold(network, given, family, inputs.x[:1].to(where))
                with hardware.enough(tried, "samples of smaller size"), unchanged(network):
                    x = _laid_out(network, inputs.x, where)
                    read = auto_blocks.first_input(x)
                    seen = None if fresh is None else _refuse_unsaved(network, fresh, folded, given, read)
                    parts, found = _adapted(network, family, inputs, where) if blocks is None else [], values
                    if not parts:
                        parts = _cut(network, blocks, Inputs(x, inputs.mask), where)
                        found = _ends(network, parts, values, sources, hyper, x[:1].to(where))
                work = Reconstruction(
                    model=network,
                    blocks=parts,
                    weights=Resident(parts),
                    recipe=given,
                    hyper=found,
                    rounding=made,
                    seed_parts=("library", name, seed),
                    device=where,
                    mask=inputs.mask,
                    timed=functools.partial(say, len(parts)) if unasked and where.type == "cpu" else None,
                )
                with unchanged(network):
                    report, stored = _run(work, x, state, progress, cache.limit(where, gpu_cache_mb))
                source = str(getattr(getattr(network, "config", None), "_name_or_path", None) or "")
                learned_by = rounding.__qualname__ if rounding else str(given.rounding)
                origin = card.origin(name, learned_by, source, x, left(work, report))
            facts = (folded, origin, provenance.environment(where), seen, fresh)
            return work, Quantized(network, given, found, sources, report, stored, *facts)

        work, quantized = precision.repeated(attempt, again=not inplace)
    said, parts = list(quantized.origin.left), work.blocks
    if blocks is None and len(parts) == 1 and len(weight_layers(parts[0])) > 1:
        said.insert(0, f"{type(model).__name__} is one block, all layers are learned together; {auto_blocks.HINT}")
    if said:
        warnings.warn("; ".join(said), stacklevel=2)
    return quantized


def _copied(model: nn.Module, x: Tensor) -> nn.Module:
    """Return a copy of a model; ``x`` (1, ...) is a sample.

    Raises:
        InputError: it can't be copied, or the copy computes with weights of the original, to which a replaced
            ``forward`` or a hook refers.
    """
    try:
        made = copy.deepcopy(model)
    except Exception as error:  # of any kind: it is the user's code
        raise InputError(
            f"{type(model).__name__}: can't be copied ({error}); remove what it keeps of a call, or {IN_PLACE}"
        ) from error
    own = ("forward", "_forward_hooks", "_forward_pre_hooks")
    if any(vars(module).get(key) for module in model.modules() for key in own):
        x = auto_blocks.first_input(x).to(next((value.device for value in model.parameters()), x.device))
        if traced(made.eval(), x, (), list(model.parameters())).reads_weights:
            raise InputError(
                f"{type(model).__name__}: a copy computes with the original's weights (a replaced forward, a hook); "
                f"{IN_PLACE}"
            )
    return made


def _run(
    work: Reconstruction, x: Tensor, state: str | Path | None, progress: bool, gpu_bytes: int
) -> tuple[list[dict[str, Any]], dict[str, codes.Part]]:
    """Learn all blocks on ``x`` (N, ...); return the report, and the stored parts, which the model then has."""
    steps = len(work.blocks) * (2 if work.recipe.a_bits and not work.joint else 1)
    with tqdm(total=steps, disable=not progress, unit="block") as bar:

        def listener(record: dict[str, Any]) -> None:
            bar.set_postfix_str(f"{record['block']}: error {record['error_hard']:.3g}")
            bar.update()

        with _state(work, x, state).opened() as opened:
            report = reconstruct(work, x, opened, gpu_bytes, listener)
            parts = {entry["file"]: opened.part(entry) for entry in opened.entries}
    codes.fill(parts.values(), work.model, work.blocks, work.device)  # as it is stored, not as it was learned
    return report, parts


def _state(work: Reconstruction, x: Tensor, directory: str | Path | None) -> State:
    """Return where finished blocks are kept, for samples ``x`` (N, ...)."""
    if directory is None:
        return MemoryState()
    digest = hashlib.sha256()
    stored = [getattr(*place) for place in places(work.model).values()]
    computed = tensors(_given(work.model, x[:1].to(work.device)))  # tells it from others with the same tensors
    if work.device.type != "cpu":  # where last bits may be others each time
        computed = [torch.tensor([float(f"{value.double().abs().sum():.2e}")]) for value in computed]
    for tensor in (*stored, x, *computed, *([] if work.mask is None else [work.mask])):
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return State(Path(directory), code_digest.fingerprint(work, digest.hexdigest()))


def _make_writable(model: nn.Module) -> None:
    """Give a model that was made in inference mode tensors that can be changed outside of it."""
    made: dict[int, Tensor] = {}
    for module in model.modules():
        for holder in (module._parameters, module._buffers):
            for key, value in holder.items():
                if value is not None and value.is_inference():
                    copied = value.clone()
                    copied = nn.Parameter(copied, value.requires_grad) if holder is module._parameters else copied
                    holder[key] = made.setdefault(id(value), copied)  # type: ignore[assignment]


@torch.no_grad()
def _laid_out(model: nn.Module, x: Tensor, device: torch.device) -> Tensor:
    """Return samples (N, ...); images with their channels last, which is faster, if the model takes them so."""
    if x.ndim != cache.IMAGES or not x.is_floating_point():
        return x
    few = x[: auto_blocks.TRIED].to(device)
    try:
        given = _given(model, few.contiguous(memory_format=torch.channels_last))
    except InputError:  # its code depends on the strides
        return x
    same = outputs_apart(given, _given(model, few)) <= auto_blocks.CLOSE
    return x.contiguous(memory_format=torch.channels_last) if same else x


@torch.no_grad()
def _refuse_unsaved(
    model: nn.Module, fresh: nn.Module, folded: dict[str, str], recipe: Recipe, x: Tensor
) -> probe.Input | None:
    """Return what inputs look like, for checks of what will be written; None if the model can't take a drawn one.

    Args:
        model: in float32, with folded batch norms.
        fresh: as it was given, without values.
        folded: the convolution of each batch norm.
        recipe: of its surgery.
        x: samples as the model reads them, (N, ...).

    Raises:
        InputError: another model of its class, with its tensors, computes something else.
    """
    seen = probe.Input.of(x)
    drawn = seen.draw()
    try:
        wanted = probe.run(model, drawn)
    except Exception as error:  # of any kind: it is the user's code
        structure.refuse_memory(error)
        log.info("%s: can't take a random input (%s), so that nothing written is compared", type(model).__name__, error)
        return None
    parts = {"": codes.Part({}, {name: getattr(*place) for name, place in places(model).items()})}
    facts = folded, recipe.preprocess, parts.values(), next(model.parameters()).device, torch.float32, drawn
    apart = refill(copy.deepcopy(fresh), *facts, lambda found: outputs_apart(found, wanted))
    if apart > auto_blocks.CLOSE:
        raise InputError(
            f"{type(model).__name__}: another one with its tensors computes something else, by {apart:.2g} of the "
            "largest output, so it can't be saved: it keeps numbers outside its parameters and buffers; make them "
            "buffers, or give check=False and use the network in memory alone"
        )
    return seen


def _refuse(model: Any) -> None:
    """Raise InputError for no module, one that is quantized, compiled or scripted, and weights without float values."""
    if not isinstance(model, nn.Module):
        raise InputError(f"model: {type(model).__name__} is no torch.nn.Module; give the full-precision network")
    for name, module in model.named_modules():
        where = name or type(model).__name__
        if isinstance(module, torch.jit.ScriptModule):
            raise InputError(f"{where}: is a torch.jit.ScriptModule, which can't be changed; give the module before")
        quantizers = {"input_quantizer", "output_quantizer"} & {*vars(module), *module._modules}  # or other tools'
        if isinstance(module, ActivationQuantizer) or hasattr(module, QUANTIZED) or quantizers:
            raise InputError(f"{where}: is quantized already; give the full-precision network")
        if isinstance(module, LazyModuleMixin) and module.has_uninitialized_params():  # type: ignore[misc]
            raise InputError(f"{where}: is a {type(module).__name__} without weights; load them, or call it once")
        if hasattr(module, "_orig_mod"):  # hooks on modules inside may not run, so inputs could not be quantized
            raise InputError(f"{where}: is compiled (torch.compile); give the network before torch.compile")
        if weight_axes(module) and not isinstance(module._parameters.get("weight"), nn.Parameter):
            raise InputError(
                f"{where}.weight: is computed from other tensors (weight_norm, parametrize); make it a parameter with "
                "torch.nn.utils.remove_weight_norm or parametrize.remove_parametrizations"
            )
    for name, value in model.named_parameters():
        if value.is_meta or not value.is_floating_point():
            kind = "on the meta device, without values" if value.is_meta else f"of type {value.dtype}"
            raise InputError(f"{name}: is {kind}; give the network with its weights in floating point")


@contextlib.contextmanager
def _float32(model: nn.Module) -> Iterator[None]:
    """Have a model compute in float32 inside, and give each parameter and buffer its own type again at the end.

    Attention gets its separate projections first, because their parameters have a type of their own, too.
    An error inside leaves neither roundings nor quantizers on the model.
    """

    def tensors() -> Iterator[tuple[str, Tensor]]:
        named = itertools.chain(model.named_parameters(), model.named_buffers())
        return ((name, value) for name, value in named if value.is_floating_point())

    separate_projections(model)
    kinds = {name: value.dtype for name, value in tensors()}
    if foreign := sorted({str(kind) for kind in kinds.values()} - {str(torch.float32)}):
        log.info("%s: of %s, quantized in float32", type(model).__name__, " and ".join(foreign))
    model.float()
    try:
        yield
    except BaseException:
        attach.strip(model)
        raise
    finally:
        large = list[str]()
        for name, value in tensors():
            alike = f"{name.rpartition('.')[0]}.weight"  # a bias that comes from folding has the type of its weight
            before, value.data = value.data, value.data.to(kinds.get(name, kinds.get(alike, value.dtype)))
            if before.dtype != value.dtype and not torch.equal(before.isfinite(), value.isfinite()):
                large.append(f"{name}: exceeds {value.dtype} when it is folded and quantized")
        if large:
            raise InputError(f"{large[0]}; give the network in float32")


@torch.no_grad()
def _fold(model: nn.Module, recipe: Recipe, family: Family, x: Tensor) -> dict[str, str]:
    """Fold batch norms and do the surgery of the recipe, in place; ``x`` (1, ...) is a sample.

    Return the convolution of each folded batch norm, by their names.

    Raises:
        InputError: the model can't take the sample, or gives two outputs for it.
    """
    before = _given(model, x)
    if outputs_apart(_given(model, x), before) > auto_blocks.CLOSE:
        raise InputError(
            f"{type(model).__name__}: gives two outputs for one sample in evaluation mode; switch off what draws "
            "numbers (dropout) or counts its calls"
        )
    folded, statistics = fold_as_traced(model, auto_blocks.first_input(x))
    groups = imports.load(family.equalization)(model) if family.equalization else None
    prepare(model, recipe.preprocess, groups, statistics)
    return folded


def _given(model: nn.Module, x: Tensor) -> Any:
    """Return what a model gives for a sample (1, ...); InputError with its error if it fails."""
    x = auto_blocks.first_input(x)
    try:
        with unchanged(model):
            return model(x)
    except Exception as error:  # of any kind: it is the user's code
        name = type(model).__name__
        raise InputError(f"samples: {name} can't take one of shape {tuple(x.shape)}: {error}") from error


@torch.no_grad()
def _adapted(model: nn.Module, family: Family, inputs: Inputs, device: torch.device) -> list[Block]:
    """Return the blocks of a known architecture, or none if they don't compute what the model does.

    So it is with a subclass that has a ``forward`` of its own, or with modules that were exchanged.
    """
    if family.blocks is None:
        return []
    name = type(model).__name__
    try:
        found = imports.load(family.blocks)(model)
        auto_blocks.check(model, found, _extremes(inputs), device)
    except Exception as error:  # of any kind: it looks for modules that are not there
        structure.refuse_memory(error)
        log.info("%s: is not cut as its architecture is: %s: %s", name, type(error).__name__, error)
        return []
    return found


def _extremes(inputs: Inputs) -> Inputs:
    """Return the samples with the least and most padding, else the first two: a known network needs no more."""
    if inputs.mask is None:
        return Inputs(inputs.x[: auto_blocks.TRIED])
    lengths = inputs.mask.sum(1)
    rows = [int(lengths.argmax()), int(lengths.argmin())]
    return Inputs(inputs.x[rows], inputs.mask[rows])


@torch.no_grad()
def _cut(model: nn.Module, blocks: Sequence[str] | Cut | None, inputs: Inputs, device: torch.device) -> list[Block]:
    """Return the blocks of a model, as they are asked for or found.

    Raises:
        InputError: there are none, of names that don't fit the model, or they can't take the samples.
    """
    x, name = inputs.x[: auto_blocks.TRIED].to(device), type(model).__name__
    if callable(blocks):
        found = list(blocks(model))
        if not found or not all(isinstance(block, Block) for block in found):
            raise InputError("blocks: the function has to return a list of flexround.Block")
    else:
        found = auto_blocks.automatic(model, x) if blocks is None else auto_blocks.named(model, list(blocks), x)
        log.info("%s: cut into %d blocks: %s", name, len(found), ", ".join(b.name for b in found))
    auto_blocks.check(model, found, inputs, device)
    return found


def _ends(
    model: nn.Module, parts: Sequence[Block], values: Hyper, sources: dict[str, str], own: dict[str, Any], x: Tensor
) -> Hyper:
    """Return the hyper-parameters with the first and last layer's own bits only where the blocks have these layers.

    ``x`` (1, ...) is a sample. Values that are ``own`` stay.
    """
    ends = auto_blocks.ends(model, x)
    for keys, block, layer, which in zip((STEM, HEAD), (parts[0], parts[-1]), ends, ("first", "last"), strict=True):
        if layer not in weight_layers(block):
            changed = dict.fromkeys((key for key in keys if key not in own and getattr(values, key) != "low"), "low")
            values = values.model_copy(update=changed)
            sources |= dict.fromkeys(changed, f"the network's {which} layer is in no block")
    return values
