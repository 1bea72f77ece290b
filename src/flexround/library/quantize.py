"""Quantize your own network by any recipe or rounding, with the engine of the suite's jobs."""

import contextlib
import copy
import functools
import hashlib
import inspect
import itertools
import logging
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from tqdm import tqdm

from flexround import code, imports
from flexround.errors import InputError
from flexround.io import resume
from flexround.library import auto_blocks, card, probe, settings
from flexround.library.auto_blocks import Cut
from flexround.library.block_check import CLOSE, HINT, TRIED, first_input
from flexround.library.quantized import QUANTIZED, Quantized, merged
from flexround.library.samples import collect
from flexround.library.settings import Family
from flexround.machine import hardware, precision, provenance
from flexround.models.blocks import Block
from flexround.models.surgery import attach
from flexround.models.surgery.attach import weight_axes, weight_layers
from flexround.models.surgery.attention import separate_projections
from flexround.models.surgery.fold_bn import fold_as_traced
from flexround.models.surgery.preprocess import prepare
from flexround.models.tensors import outputs_apart, places, tensors, unchanged
from flexround.models.trace import traced
from flexround.quant.rounding import Rounding
from flexround.reconstruct import cache, codes
from flexround.reconstruct.codes import site_key
from flexround.reconstruct.engine import left, reconstruct
from flexround.reconstruct.reconstruction import Reconstruction, Resident, checked
from flexround.reconstruct.state import MemoryState, State
from flexround.settings.params import refuse_unweighted
from flexround.settings.schema import Hyper, Recipe
from flexround.tasks.protocol import Inputs

log = logging.getLogger(__name__)
IN_PLACE = "call quantize with inplace=True to change the network itself"
LONG = 0.25  # hours
ROOMS = ("library", "reconstruct", "quant", "models", "machine", "io")  # rooms whose code decides a result
STEM, HEAD = ("stem_bits", "stem_output_bits"), ("head_bits", "head_input_bits")


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
    """Quantize a trained network block by block (FlexRound, equation 2; BRECQ's or QDrop's setting).

    Every block with weights is learned. One warning names all layers left at round-to-nearest or in floating point.

    Args:
        model: any module whose parts run one after the other, with parameters of any floating type: it is quantized in
            float32 and returned in its own type. Batch norms are folded.
        samples: calibration inputs without labels: images float (N, C, H, W), or other input of the model; token ids
            int64 (N, T); a mapping with Hugging Face's names; a list of such batches; or a DataLoader.
        recipe: a name of params/recipes.yaml (``b-flexround-w4``, ``q-flexround-w4a4``, ...) or a ``flexround.Recipe``.
        scale: source of default hyper-parameters: ``paper``; ``short``, 200 to 2,000 iterations with rates to match; or
            a YAML file that extends one of these scales. None: ``paper``, with a warning if it takes hours on a CPU.
        blocks: the cut of the network: names of modules, or a function of the (folded) model that returns
            ``flexround.Block`` objects. None: by architecture if the suite knows it and its blocks compute the same
            as the network, else along its parts; the log names the choice. The cut is checked on two samples.
        rounding: a class to use instead of the recipe's rounding, with the recipe's ``options``.
        seed: seed for drawing batches.
        device: device of the computation; None for a GPU if available.
        state: directory for finished blocks; after an interruption the same call resumes there. None: nothing is
            written to the disk.
        progress: whether to show a bar.
        inplace: change ``model`` itself, even if an error ends the call (roundings and quantizers are then removed);
            else it is copied and stays unchanged.
        gpu_cache_mb: GPU memory for activations; larger caches are kept on the host. None for half of the memory.
        check: whether ``save`` and ``export`` compare the network with their files, on one input.
        **hyper: hyper-parameters that differ from the scale's for this recipe and architecture, such as ``iters`` or
            ``lr``; class ``Hyper`` of ``settings/schema.py`` lists all. ``Quantized.hyper`` and ``sources`` give the
            values in use and their sources.

    Raises:
        SettingsError: an unknown scale, recipe, hyper-parameter or value, or a regularizer without weight.
        InputError: unusable samples, model (quantized already, layers that share a weight, ...) or cut, or too little
            memory for a block, with advice to lower it.
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
            fresh = probe.outline(network) if check else None
            network = network.eval().to(where)
            with _float32(network):
                with hardware.enough(f"{type(network).__name__}, compared with its blocks", "samples of smaller size"):
                    folded = _fold(network, given, family, inputs.x[:1].to(where))
                    with unchanged(network):
                        x = _laid_out(network, inputs.x, where)
                        adapter, found = family.blocks if blocks is None else None, values
                        parts = auto_blocks.adapted(network, adapter, inputs, where)
                        if not parts:
                            parts = auto_blocks.cut(network, blocks, Inputs(x, inputs.mask), where)
                            found = _ends(network, parts, values, sources, hyper, x[:1].to(where))
                seen = probe.Input.of(first_input(x)) if check else None
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
        said.insert(0, f"{type(model).__name__} is one block, all layers are learned together; {HINT}")
    if said:
        warnings.warn("; ".join(said), stacklevel=2)
    return quantized


def _copied(model: nn.Module, x: Tensor) -> nn.Module:
    """Return a copy of a model; ``x`` (1, ...) is a sample.

    Raises:
        InputError: the model can't be copied, or the copy computes with the original's weights because a replaced
            ``forward`` or a hook refers to them.
    """
    try:
        made = copy.deepcopy(model)
    except Exception as error:  # of any kind: it is the user's code
        raise InputError(
            f"{type(model).__name__}: can't be copied ({error}); remove what it keeps of a call, or {IN_PLACE}"
        ) from error
    own = ("forward", "_forward_hooks", "_forward_pre_hooks")
    if any(vars(module).get(key) for module in model.modules() for key in own):
        x = first_input(x).to(next((value.device for value in model.parameters()), x.device))
        if traced(made.eval(), x, (), list(model.parameters())).reads_weights:
            raise InputError(
                f"{type(model).__name__}: a copy computes with the original's weights (a replaced forward, a hook); "
                f"{IN_PLACE}"
            )
    return made


def _run(
    work: Reconstruction, x: Tensor, state: str | Path | None, progress: bool, gpu_bytes: int
) -> tuple[list[dict[str, Any]], dict[str, codes.Part]]:
    """Learn all blocks on ``x`` (N, ...); return the report and the stored parts, whose values the model then has."""
    steps = len(work.blocks) * (2 if work.recipe.a_bits and not work.joint else 1)
    with tqdm(total=steps, disable=not progress, unit="block") as bar:

        def listener(record: dict[str, Any]) -> None:
            bar.set_postfix_str(f"{record['block']}: error {record['error_hard']:.3g}")
            bar.update()

        with _state(work, x, state).opened() as opened:
            report = reconstruct(work, x, opened, gpu_bytes, listener)
            parts = {entry["file"]: opened.part(entry) for entry in opened.entries}
    codes.fill(parts.values(), work.model, work.blocks, work.device)  # with stored values instead of learned values
    return report, parts


def _state(work: Reconstruction, x: Tensor, directory: str | Path | None) -> State:
    """Return the state that keeps finished blocks, for samples ``x`` (N, ...)."""
    if directory is None:
        return MemoryState()
    digest = hashlib.sha256()
    stored = [getattr(*place) for place in places(work.model).values()]
    computed = tensors(_given(work.model, x[:1].to(work.device)))  # distinguishes models with equal tensors
    if work.device.type != "cpu":  # last bits may differ each time
        computed = [torch.tensor([float(f"{value.double().abs().sum():.2e}")]) for value in computed]
    for tensor in (*stored, x, *computed, *([] if work.mask is None else [work.mask])):
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return State(Path(directory), fingerprint(work, digest.hexdigest()))


def fingerprint(work: Reconstruction, inputs: str) -> str:
    """Return a hash of everything that decides the bits of a reconstruction: settings, machine, inputs and code.

    The code includes the library, the rounding and all modules that the rounding imports.

    Args:
        work: its rounding is a class, or a function that makes a rounding, from a module, a script or a notebook.
        inputs: a digest of the weights and the samples.

    Raises:
        OSError: the rounding's code was typed into an interpreter that doesn't keep it.
    """
    rounding = work.rounding
    bases = rounding.__mro__ if isinstance(rounding, type) else (rounding,)
    modules = {base.__module__ for base in bases} - {"__main__", "builtins"}
    script = getattr(sys.modules["__main__"], "__file__", None)
    typed = [part for base in bases if base.__module__ == "__main__" for part in (base, *vars(base).values())]
    functions = [part for part in typed if inspect.isfunction(part)]  # a notebook's classes have no source of their own
    text = "" if not typed else Path(script).read_text() if script else "".join(map(inspect.getsource, functions))
    names = {module: name for name, module in work.model.named_modules()}
    cut = [(block.name, [site_key(names, site) for site in block.sites]) for block in work.blocks]
    settings = (work.recipe.model_dump_json(), work.hyper.model_dump_json(), str(work.seed_parts), str(cut))
    return resume.fingerprint(work.device, inputs, *settings, code.digest(code.files(ROOMS, sorted(modules))), text)


@torch.no_grad()
def _laid_out(model: nn.Module, x: Tensor, device: torch.device) -> Tensor:
    """Return samples (N, ...); images have channels last, which is faster, if the model accepts this layout."""
    if x.ndim != cache.IMAGES or not x.is_floating_point():
        return x
    few = x[:TRIED].to(device)
    try:
        given = _given(model, few.contiguous(memory_format=torch.channels_last))
    except InputError:  # the model's code depends on the strides
        return x
    same = outputs_apart(given, _given(model, few)) <= CLOSE
    return x.contiguous(memory_format=torch.channels_last) if same else x


def _refuse(model: nn.Module) -> None:
    """Raise InputError for a network that is quantized or compiled, or with weights computed from other tensors."""
    for name, module in model.named_modules():
        where = name or type(model).__name__
        if any(hasattr(module, key) for key in (QUANTIZED, "input_quantizer", "output_quantizer")):  # or other tools'
            raise InputError(f"{where}: is quantized already; give the full-precision network")
        if hasattr(module, "_orig_mod"):  # hooks on modules inside may not run, so inputs could not be quantized
            raise InputError(f"{where}: is compiled (torch.compile); give the network before torch.compile")
        if weight_axes(module) and "weight" not in module._parameters:
            raise InputError(
                f"{where}.weight: is computed from other tensors (weight_norm, parametrize); make it a parameter with "
                "torch.nn.utils.remove_weight_norm or parametrize.remove_parametrizations"
            )


@contextlib.contextmanager
def _float32(model: nn.Module) -> Iterator[None]:
    """Convert a model to float32 inside the context; restore the type of each parameter and buffer at the end.

    Attention first gets separate projections, whose parameters need a stored type, too. An error inside the context
    leaves neither roundings nor quantizers on the model.
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
        for name, value in tensors():
            alike = f"{name.rpartition('.')[0]}.weight"  # a bias from folding has its weight's type
            before, value.data = value.data, value.data.to(kinds.get(name, kinds.get(alike, value.dtype)))
            if before.dtype != value.dtype and not torch.equal(before.isfinite(), value.isfinite()):
                raise InputError(f"{name}: exceeds {value.dtype} when it is folded; give the network in float32")


@torch.no_grad()
def _fold(model: nn.Module, recipe: Recipe, family: Family, x: Tensor) -> dict[str, str]:
    """Fold batch norms and apply the recipe's surgery, in place; ``x`` (1, ...) is a sample.

    Return the names of folded batch norms, each with its convolution's name.

    Raises:
        InputError: the model can't take the sample, or gives two different outputs for it.
    """
    before = _given(model, x)
    if outputs_apart(_given(model, x), before) > CLOSE:
        raise InputError(
            f"{type(model).__name__}: gives two outputs for one sample in evaluation mode; switch off what draws "
            "numbers (dropout) or counts its calls"
        )
    folded, statistics = fold_as_traced(model, first_input(x))
    groups = imports.load(family.equalization)(model) if family.equalization else None
    prepare(model, recipe.preprocess, groups, statistics)
    return folded


def _given(model: nn.Module, x: Tensor) -> Any:
    """Return a model's output for a sample (1, ...); if the model fails, InputError with the model's error."""
    x = first_input(x)
    try:
        with unchanged(model):
            return model(x)
    except Exception as error:  # of any kind: it is the user's code
        name = type(model).__name__
        raise InputError(f"samples: {name} can't take one of shape {tuple(x.shape)}: {error}") from error


def _ends(
    model: nn.Module, parts: Sequence[Block], values: Hyper, sources: dict[str, str], own: dict[str, Any], x: Tensor
) -> Hyper:
    """Return the hyper-parameters without separate bits for a first or last layer that no block contains.

    ``x`` (1, ...) is a sample. The caller's ``own`` values stay.
    """
    ends = auto_blocks.ends(model, x)
    for keys, block, layer, which in zip((STEM, HEAD), (parts[0], parts[-1]), ends, ("first", "last"), strict=True):
        if layer not in weight_layers(block):
            changed = dict.fromkeys((key for key in keys if key not in own and getattr(values, key) != "low"), "low")
            values = values.model_copy(update=changed)
            sources |= dict.fromkeys(changed, f"the network's {which} layer is in no block")
    return values
