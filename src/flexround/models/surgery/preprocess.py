"""The surgery that a recipe asks for, in its order."""

from collections.abc import Sequence
from typing import get_args

from torch import nn

from flexround.errors import SettingsError, suggest
from flexround.models.groups import EqualizationGroup
from flexround.models.surgery.attention import separate_projections
from flexround.models.surgery.equalize import absorb_high_biases, equalize
from flexround.models.surgery.fold_bn import fold_batch_norm
from flexround.models.surgery.relu6 import replace_relu6, restore_relu6
from flexround.settings.schema import Preprocess

_NEED_GROUPS = ("cross_layer_equalization", "absorb_high_biases")


def prepare(model: nn.Module, steps: Sequence[str], groups: Sequence[EqualizationGroup] | None = None) -> None:
    """Give attention separate projections, fold batch norms, then apply ``steps`` in order, all in place.

    Args:
        model: in evaluation mode.
        steps: names of `settings.schema.Preprocess`.
        groups: from the architecture's ``equalization_groups``; None if it offers none.

    Raises:
        SettingsError: a step is unknown, in the wrong place, or impossible for this architecture; nothing is changed.
        InputError: a batch norm can't be folded.
    """
    _check(model, steps, groups)
    separate_projections(model)
    statistics = fold_batch_norm(model)
    replaced: list[str] = []
    for step in steps:
        match step:
            case "replace_relu6":
                replaced = replace_relu6(model)
            case "cross_layer_equalization":
                equalize(model, groups or (), statistics)
            case "absorb_high_biases":
                absorb_high_biases(model, groups or (), statistics)
            case "restore_relu6":
                restore_relu6(model, replaced)


def _check(model: nn.Module, steps: Sequence[str], groups: Sequence[EqualizationGroup] | None) -> None:
    """Refuse steps that can't be done or would silently change what the model computes."""
    clips = any(isinstance(module, nn.ReLU6) for module in model.modules())
    for i, step in enumerate(steps):
        if step not in get_args(Preprocess):
            raise SettingsError(f"preprocess: {suggest(step, get_args(Preprocess))}")
        if step in _NEED_GROUPS and groups is None:
            raise SettingsError(
                f"preprocess: {step} needs equalization groups and {type(model).__name__} offers none; "
                "drop the step, or set model.equalization for this checkpoint in params/scales"
            )
        if step == "cross_layer_equalization" and clips:
            raise SettingsError(f"preprocess: {step} moves the clipping points of ReLU6; put replace_relu6 before it")
        if step == "restore_relu6" and "replace_relu6" not in steps[:i]:
            raise SettingsError("preprocess: restore_relu6 undoes replace_relu6, which does not come before it")
        clips = step == "restore_relu6" or (clips and step != "replace_relu6")
