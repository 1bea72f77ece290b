"""Quantize a network of one's own by any recipe or rounding, with the engine that the suite's jobs run."""

import copy
import hashlib
import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from tqdm import tqdm

from flexround import imports, precision
from flexround.errors import InputError
from flexround.library import code_digest, cut, families, samples, settings
from flexround.library.families import Family
from flexround.library.memory_state import HeardState, Listener, MemoryState
from flexround.library.quantized import Quantized, sites, unquantized
from flexround.models.blocks import Block
from flexround.quant.rounding import Rounding
from flexround.reconstruct import cache, result
from flexround.reconstruct.engine import reconstruct
from flexround.reconstruct.reconstruction import Reconstruction
from flexround.reconstruct.state import State
from flexround.reconstruct.weights import Resident
from flexround.seeding import derive
from flexround.settings.schema import Hyper, Recipe
from flexround.surgery.place import weight_layers
from flexround.surgery.preprocess import prepare
from flexround.tasks.protocol import Inputs

log = logging.getLogger(__name__)
FOLDED = 1e-3  # of the largest output: how far a network with folded batch norms may be off
Cut = Callable[[nn.Module], Sequence[Block]]


@torch.inference_mode(False)
@torch.enable_grad()
def quantize(
    model: nn.Module,
    samples: Any,
    recipe: str | Recipe,
    *,
    blocks: Sequence[str] | Cut | None = None,
    rounding: type[Rounding] | None = None,
    seed: int = 0,
    device: str | torch.device | None = None,
    state: str | Path | None = None,
    progress: bool = True,
    inplace: bool = False,
    cache_mb: int | None = None,
    gpu_cache_mb: int | None = None,
    **hyper: Any,
) -> Quantized:
    """Quantize a network after training, block by block (FlexRound, equation 2; BRECQ's or QDrop's setting).

    Args:
        model: any module whose parts run one after the other. Batch norms are folded.
        samples: calibration inputs without labels: images float (N, C, H, W), or whatever the model reads; token ids
            int64 (N, T); a mapping of Hugging Face's names; a list of such batches; or a DataLoader.
        recipe: a name of params/recipes.yaml (``b-flexround-w4``, ``q-flexround-w4a4``, ...) or a ``flexround.Recipe``.
        blocks: how the network is cut: names of modules, or a function of the (folded) model that returns
            ``flexround.Block`` objects. None: by architecture if the suite knows it, else along its parts, with a line
            in the log that says which.
        rounding: a class to use in the place of the recipe's rounding, with the recipe's ``options``.
        seed: of the draws of batches.
        device: where it runs; None for a GPU if there is one.
        state: directory for finished blocks; the same call goes on there after an interruption. None: nothing is
            written to the disk.
        progress: whether to show a bar.
        inplace: change ``model`` itself; else it is copied and stays as it is.
        cache_mb: of the host's memory for activations, which are in files below ``state`` if they take more; None for
            half of it.
        gpu_cache_mb: of the GPU's memory likewise; they are on the host if they take more.
        **hyper: hyper-parameters that differ from the paper's for this recipe and architecture, such as ``iters`` or
            ``lr``; docs/settings.md has them all. ``Quantized.hyper`` and ``sources`` say what was used and why.

    Raises:
        SettingsError: an unknown recipe, hyper-parameter or value.
        InputError: samples, a model or a cut that can't be used, or too little memory for a block, with what lowers it.
        NumericalError: NaN or Inf, with block and iteration.
    """
    where = _device(device)
    inputs = _samples(samples)
    name, given = settings.recipe(recipe)
    family = families.of(model, inputs.x)
    values, sources = settings.resolve(name, given, family, len(inputs.x), where, hyper)
    made = rounding or imports.load(settings.target(given.rounding or ""))
    network = (model if inplace else copy.deepcopy(model)).eval().to(where)
    _fold(network, given, family, inputs.x[:1].to(where))
    parts = _cut(network, blocks, family, inputs.x[: cut.TRIED].to(where))
    values = _ends(parts, values, sources, hyper)
    work = Reconstruction(
        model=network,
        blocks=parts,
        weights=Resident(parts),
        recipe=given,
        hyper=values,
        rounding=made,
        seed_parts=("library", name, seed),
        device=where,
        mask=inputs.mask,
    )
    return _run(work, inputs, state, progress, sources, (cache.of_mb(cache_mb), cache.of_mb(gpu_cache_mb)))


def _run(
    work: Reconstruction,
    inputs: Inputs,
    state: str | Path | None,
    progress: bool,
    sources: dict[str, str],
    limits: tuple[int | None, int | None],
) -> Quantized:
    """Learn all blocks; return the network with its report."""
    steps = len(work.blocks) * (2 if work.recipe.a_bits and not work.joint else 1)
    with tqdm(total=steps, disable=not progress, unit="block") as bar:

        def listener(record: dict[str, Any]) -> None:
            bar.set_postfix_str(f"{record['block']}: error {record['error_hard']:.3g}")
            bar.update()

        with _state(work, inputs, state, listener) as opened:
            report = reconstruct(work, inputs.x, opened, *limits)
            names = [f"{entry['position'].replace('/', '-')}.safetensors" for entry in opened.entries]
            parts = dict(zip(names, map(opened.tensors, opened.entries), strict=True))
            grids = {name: entry["facts"]["grids"] for name, entry in zip(names, opened.entries, strict=True)}
    for name, of_part in parts.items():  # as it is stored, not as it was learned
        result.apply(result.unflatten(of_part, grids[name]), work.model, work.blocks, work.device)
    if kept := unquantized(work.model, parts):
        log.info("in full precision, because they are in no block: %s", ", ".join(kept))
    return Quantized(
        model=work.model,
        recipe=work.recipe,
        hyper=work.hyper,
        sources=sources,
        report=report,
        parts=parts,
        grids=grids,
        sites=sites(work.model, work.recipe, work.blocks),
    )


def _state(
    work: Reconstruction, inputs: Inputs, directory: str | Path | None, listener: Listener
) -> AbstractContextManager[State]:
    """Return where finished blocks are kept."""
    if directory is None:
        return nullcontext(MemoryState(listener))
    digest = hashlib.sha256()
    for tensor in (*work.model.state_dict().values(), inputs.x, *([] if inputs.mask is None else [inputs.mask])):
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    made_by = code_digest.of("flexround.library.quantize:quantize", work.rounding)
    facts = (work.recipe.model_dump_json(), work.hyper.model_dump_json(), work.seed_parts, made_by, torch.__version__)
    machine = (str(work.device), torch.get_num_threads(), [block.name for block in work.blocks])
    return HeardState(Path(directory), f"{derive(digest.hexdigest(), *facts, *machine):016x}", listener).opened()


def _device(asked: str | torch.device | None) -> torch.device:
    """Return where to compute; a GPU then gives the same bits each time.

    Raises:
        InputError: there is no such device.
    """
    device = torch.device(asked or ("cuda" if torch.cuda.is_available() else "cpu"))
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise InputError(f"device {device}: this PyTorch finds no GPU; leave device out, or install its driver")
        precision.repeatable()
    return device


def _samples(given: Any) -> Inputs:
    """Return the samples without columns in which all are padded."""
    return samples.collect(given).trimmed()


@torch.no_grad()
def _fold(model: nn.Module, recipe: Recipe, family: Family, x: Tensor) -> None:
    """Fold batch norms and do the surgery of the recipe, in place.

    Raises:
        InputError: a batch norm can't be folded, or the model computes something else afterwards: the convolution that
            was registered before it is not what it normalises.
    """
    known = family.blocks is not None
    before = None if known else model(cut.first_input(x))
    prepare(model, recipe.preprocess, imports.load(family.equalization)(model) if family.equalization else None)
    if isinstance(before, Tensor):
        after = model(cut.first_input(x))
        if (after - before).abs().max() > FOLDED * before.abs().max():
            raise InputError(
                f"{type(model).__name__}: computes something else when its batch norms are folded into the "
                "convolutions registered before them; register each right after its own, or fold them yourself"
            )


def _cut(model: nn.Module, blocks: Sequence[str] | Cut | None, family: Family, x: Tensor) -> list[Block]:
    """Return the blocks of a model, as they are asked for, known or found.

    Raises:
        InputError: there are none, or of names that don't fit the model.
    """
    if callable(blocks):
        found = list(blocks(model))
        if not found or not all(isinstance(block, Block) for block in found):
            raise InputError("blocks: the function has to return a list of flexround.Block")
    elif blocks is not None:
        found = cut.named(model, list(blocks), x)
    elif family.blocks is not None:
        found = imports.load(family.blocks)(model)
    else:
        found = cut.automatic(model, x)
        log.info("%s: cut into %d blocks: %s", type(model).__name__, len(found), ", ".join(b.name for b in found))
    return found


def _ends(parts: Sequence[Block], values: Hyper, sources: dict[str, str], own: dict[str, Any]) -> Hyper:
    """Return the hyper-parameters with the first and last layer's own bits only where these are alone in their blocks.

    The recipes of image networks mean one layer by them, and a cut that was found may have several there.
    """
    for key, block in (("stem_bits", parts[0]), ("head_bits", parts[-1])):
        if key not in own and getattr(values, key) != "low" and len(weight_layers(block)) > 1:
            values = values.model_copy(update={key: "low"})
            sources[key] = f"block {block.name} has several layers, all of the recipe's bits"
    return values
