"""The settings of a network of one's own: a recipe's, as the paper's scale resolves them, and what is overridden."""

import functools
from typing import Any

import torch

from flexround.errors import SettingsError, suggest
from flexround.library.families import SCALE, Family
from flexround.settings.layout import Run
from flexround.settings.load import load_params
from flexround.settings.params import Params, hyper
from flexround.settings.schema import Hyper, Recipe
from flexround.settings.validation import validate

OWN = "own"  # name of a recipe that is given as such


@functools.cache
def _paper() -> Params:
    return load_params(SCALE)


def recipe(given: str | Recipe) -> tuple[str, Recipe]:
    """Return a recipe and its name.

    Raises:
        SettingsError: no such recipe, one that chooses among others, or one that quantizes nothing.
    """
    name, found = (given, _paper().recipe(given)) if isinstance(given, str) else (OWN, given)
    if found.setting is None:
        made = [name for name in _paper().recipes.made("setting") if name not in (given, OWN)]
        raise SettingsError(f"recipe {name!r} has no rounding of its own; choose one that has, such as {made[0]!r}")
    return name, found


def target(rounding: str) -> str:
    """Return ``package.module:Class`` of a rounding."""
    return _paper().rounding_target(rounding)


def resolve(
    name: str, given: Recipe, family: Family, samples: int, device: torch.device, own: dict[str, Any]
) -> tuple[Hyper, dict[str, str]]:
    """Return all hyper-parameters and the source of each.

    They are those of the paper's scale for a network of the family, but for the number of samples, which is that of the
    samples given, a batch of at most as many, float32 on a CPU, and that the first block is learned, too.

    Args:
        name: of the recipe.
        given: the recipe.
        family: of the network.
        samples: how many there are.
        device: where it is computed.
        own: values that are set by the caller.

    Raises:
        SettingsError: an unknown or wrong value.
    """
    params = _paper()
    recipes = params.recipes.model_copy(update={"recipes": {**params.recipes.recipes, name: given}})
    run = Run(SCALE, family.task, family.checkpoint, name, 0)
    resolved, sources = hyper(params._replace(recipes=recipes), run)
    values = resolved.model_dump()
    if unknown := sorted(own.keys() - values.keys()):
        raise SettingsError(f"hyper-parameter {suggest(unknown[0], values)}")
    here = {"samples": samples, "batch": min(values["batch"], samples)}
    if "reconstruct_stem" not in given.hyper:
        here |= {"reconstruct_stem": True}
    if device.type == "cpu":
        here |= {"precision": "float32", "cache_dtype": "float32", "fused": False}
    sources |= dict.fromkeys(here, "the library: samples, device, every block is learned") | dict.fromkeys(own, "given")
    return validate(Hyper, values | here | own, f"recipe {name}"), sources
