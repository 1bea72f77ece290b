"""The surgery that a recipe asks for, in its order."""

from collections.abc import Iterable, MutableMapping, Sequence

from torch import nn

from flexround.errors import SettingsError
from flexround.models.blocks import EqualizationGroup
from flexround.models.surgery.attention import separate_projections
from flexround.models.surgery.equalize import absorb_high_biases, equalize
from flexround.models.surgery.fold_bn import FoldedStatistics, fold_batch_norm
from flexround.settings.schema import NEED_GROUPS


def prepare(
    model: nn.Module,
    steps: Sequence[str],
    groups: Sequence[EqualizationGroup] | None = None,
    statistics: MutableMapping[str, FoldedStatistics] | None = None,
) -> None:
    """Give attention separate projections, fold batch norms, then apply ``steps`` in order, all in place.

    Args:
        model: in evaluation mode.
        steps: of `settings.schema.Preprocess`.
        groups: from the architecture's ``equalization_groups``; None if it offers none.
        statistics: of the batch norms if they are folded already.

    Raises:
        SettingsError: a step is in the wrong place, or impossible for this architecture; nothing is changed.
        InputError: a batch norm can't be folded.
    """
    _check(model, steps, groups)
    separate_projections(model)
    if statistics is None:
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
        if step in NEED_GROUPS and groups is None:
            raise SettingsError(
                f"preprocess: {step} needs equalization groups and {type(model).__name__} offers none; "
                "drop the step, or set model.equalization for this checkpoint in params/scales"
            )
        if step == "cross_layer_equalization" and clips:
            raise SettingsError(f"preprocess: {step} moves the clipping points of ReLU6; put replace_relu6 before it")
        if step == "restore_relu6" and "replace_relu6" not in steps[:i]:
            raise SettingsError("preprocess: restore_relu6 undoes replace_relu6, which does not come before it")
        clips = step == "restore_relu6" or (clips and step != "replace_relu6")


def replace_relu6(model: nn.Module) -> list[str]:
    """Replace every ReLU6 by a ReLU, because scaling a channel moves its clipping point (Nagel et al. 2019, 5.1.1).

    Returns:
        The names of the replaced modules. Modules that contain them, and hooks on those, stay.
    """
    clipped = {name: m for name, m in model.named_modules(remove_duplicate=False) if isinstance(m, nn.ReLU6)}
    for name, module in clipped.items():
        model.set_submodule(name, nn.ReLU(inplace=module.inplace))
    return list(clipped)


def restore_relu6(model: nn.Module, names: Iterable[str]) -> None:
    """Put ReLU6 back at ``names``, which clips equalized channels at the wrong level.

    The published code of BRECQ and QDrop does so when it wraps the blocks of MobileNetV2, a plausible cause of the
    0.18 % that FlexRound's appendix reports after equalization.
    """
    for name in names:
        model.set_submodule(name, nn.ReLU6(inplace=True))
