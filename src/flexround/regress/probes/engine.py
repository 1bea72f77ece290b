"""The engine on small networks, by recipes of the mini scale with rates of its own, a few iterations each."""

import copy
import functools
import math
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from flexround import imports
from flexround.quant.flexround import FlexRound
from flexround.quant.grid import Scheme
from flexround.reconstruct.engine import reconstruct
from flexround.reconstruct.reconstruction import Reconstruction
from flexround.reconstruct.result import Result, unflatten
from flexround.reconstruct.state import State
from flexround.reconstruct.weights import Resident
from flexround.regress.probes import networks
from flexround.regress.probes.networks import Network
from flexround.settings.layout import Run
from flexround.settings.load import Params, hyper, load_params
from flexround.surgery import place

BUDGET = {"samples": 64, "batch": 16, "iters": 30, "a_iters": 20, "a_init_samples": 32}
RATES = {"lr": 5.0e-3, "a_lr": 1.0e-3}  # small ones: what a scale needs to converge amplifies the last bits
OF_ROUNDING: dict[str, dict[str, Any]] = {  # what differs from BUDGET and RATES
    "adaround": {"iters": 90, "lr": 1.0e-2, "reg_weight": 0.01},  # its regulariser acts late
    "adaquant": {"lr": {"v": 5.0e-4, "s1": 5.0e-3}},
    "adaquant-flexround": {"lr": {"v": 5.0e-4, "scales": 5.0e-3}},
}
IMAGES = ("imagenet", "resnet18-brecq")
TEXT = ("webnlg", "gpt2-medium")
ROUNDINGS = ("rtn", "adaround", "adaquant", "flexround", "adaquant-flexround")
RECIPES = {
    **{f"b-{rounding}-w{bits}": IMAGES for rounding in ROUNDINGS for bits in (4, 3, 2)},
    **{f"{setting}-{rounding}-w3a3": IMAGES for setting in "bq" for rounding in ("adaround", "flexround")},
    **{f"q-{rounding}-w{bits}a8": TEXT for bits in (4, 8) for rounding in ("rtn", "adaround", "flexround")},
}


_params = functools.cache(load_params)


def probe(recipe: str, variant: int) -> dict[str, float]:
    """Quantize the network of a recipe and return what it became.

    Returns:
        ``error``: squared error of the output relative to its variance. ``moved``: share of codes that are not the
        nearest on the initial grid. ``step``: mean of ln(step / initial step). ``bits``: of first, inner and last
        weights. ``zero``: mean zero point. ``activation``: mean activation step. ``hard``: mean of ln(error of a block
        with its final codes / error while it was learned).
    """
    params = _params("mini")
    pair = RECIPES[recipe]
    network = networks.convolutional(variant) if pair == IMAGES else networks.transposed(variant)
    full = copy.deepcopy(network.model)
    result, records = _quantize(network, params, Run(params.scale.name, *pair, recipe, 0))
    weights = {key.partition("/")[2]: stored for key, stored in result.items() if stored.codes is not None}
    moved, steps = [], []
    for name, stored in weights.items():
        assert stored.codes is not None
        assert stored.initial_step is not None
        weight, grid = full.get_parameter(f"{name}.weight").detach(), stored.grid
        nearest = torch.round(weight / stored.initial_step) + grid.zero_point
        moved.append((nearest.clamp(grid.qmin, grid.qmax) != stored.codes).float().flatten())
        steps.append((grid.step / stored.initial_step).log().flatten())
    bits = [math.log2(stored.grid.qmax - stored.grid.qmin + 1) for stored in weights.values()]
    soft = [math.log(record["error_hard"] / record["error_soft"]) for record in records if "error_soft" in record]
    actual, expected = _output(network.model, network), _output(full, network)
    return {
        "error": float((actual - expected).square().mean() / expected.var()),
        "moved": float(torch.cat(moved).mean()),
        "step": float(torch.cat(steps).mean()),
        "zero": _mean(stored.grid.zero_point for stored in weights.values()),
        "bits_first": bits[0],
        "bits_inner": bits[1],
        "bits_last": bits[-1],
        "activation": _mean(stored.grid.step for stored in result.values() if stored.codes is None),
        "hard": sum(soft) / max(1, len(soft)),
    }


@torch.no_grad()
def scales(variant: int) -> dict[str, float]:
    """Return how many values FlexRound's s3 and s4 have over all layers of a network: along which axes they lie."""
    found = {}
    for name, network in (("images", networks.convolutional(variant)), ("texts", networks.transposed(variant))):
        layers = [layer for block in network.cut(network.model) for layer in place.weight_layers(block)]
        made = [_flexround(layer) for layer in layers]
        for scale, logs in (("s3", [one.d3 for one in made]), ("s4", [one.d4 for one in made])):
            found[f"{name}/{scale}"] = float(sum(0 if log is None else log.numel() for log in logs))
    return found


def _flexround(layer: torch.nn.Module) -> FlexRound:
    """Return the rounding of a layer of 4 bits per channel."""
    axes, weight = place.weight_axes(layer), layer.get_parameter("weight")
    assert axes is not None
    return FlexRound(weight, place.weight_grid("", weight, Scheme(4, axis=axes.output), "minmax", 2.0), axes)


def _mean(tensors: Iterable[Tensor]) -> float:
    """Return the mean over all tensors' means; 0 without any."""
    found = [float(tensor.mean()) for tensor in tensors]
    return sum(found) / max(1, len(found))


def _quantize(network: Network, params: Params, run: Run) -> tuple[Result, list[dict[str, float]]]:
    """Reconstruct a network in place; return its grids and codes, and the records of its blocks."""
    recipe = params.recipe(run.recipe)
    settings = hyper(params, run)[0]
    own = {**BUDGET, **RATES, **OF_ROUNDING.get(recipe.rounding or "", {})}
    settings = settings.model_copy(update={key: value for key, value in own.items() if getattr(settings, key)})
    blocks = network.cut(network.model)
    job = Reconstruction(
        model=network.model,
        blocks=blocks,
        weights=Resident(blocks),
        recipe=recipe,
        hyper=settings,
        rounding=imports.load(params.rounding_target(recipe.rounding or "")),
        seed_parts=("sentinel",),
        device=torch.device("cpu"),
    )
    found: Result = {}
    with tempfile.TemporaryDirectory() as place, State(Path(place) / "run", "0" * 16).opened() as state:
        records = reconstruct(job, network.samples, state)
        for entry in state.entries:
            found |= unflatten(state.tensors(entry), entry["facts"]["grids"])
    return found, records


@torch.no_grad()
def _output(model: torch.nn.Module, network: Network) -> Tensor:
    """Return what a model makes of the samples."""
    x: Tensor = network.samples
    for block in network.cut(model):
        x = block(block.before(x))
    return x
