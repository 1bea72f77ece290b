"""Every rounding of params/recipes.yaml, bare and with each set of options that a recipe gives it; kinds of weights."""

from flexround import imports
from flexround.quant.rounding import Axes
from flexround.settings.layout import PARAMS
from flexround.settings.schema import Recipes
from flexround.settings.validation import read_yaml, validate

_SETTINGS = validate(Recipes, read_yaml(PARAMS / "recipes.yaml"), "recipes")


def _cases():
    for name, target in _SETTINGS.roundings.items():
        yield name, (imports.load(target), {})
    for recipe in _SETTINGS.recipes.values():
        if recipe.options and recipe.rounding in _SETTINGS.roundings:
            options = " ".join(f"{key}={value}" for key, value in recipe.options.items())
            yield f"{recipe.rounding} {options}", (imports.load(_SETTINGS.roundings[recipe.rounding]), recipe.options)


CASES = dict(_cases())

SHAPES = {
    "linear": ((7, 5), Axes(0)),
    "conv": ((6, 4, 3, 3), Axes(0, 1)),
    "grouped": ((8, 2, 3, 3), Axes(0, 1)),
    "depthwise": ((8, 1, 3, 3), Axes(0, 1)),
    "conv1d": ((5, 7), Axes(1)),
}
