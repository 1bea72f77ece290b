"""A recipe's surgery: ReLU6 to ReLU and back, equalization, absorption (Nagel et al. 2019).

Equalization and absorption move values between neighbouring convolutions of a model with folded batch norms. With ReLU
between them, equalization preserves the model's function; absorption preserves it except at padding and for rare small
activations. ``model`` is changed in place, ``groups`` are its architecture's ``equalization_groups``, and
``statistics`` come from `fold_batch_norm` and are updated.
"""

import itertools
import logging
from collections.abc import Iterable, MutableMapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from flexround.errors import SettingsError
from flexround.models.blocks import EqualizationGroup
from flexround.models.surgery.attention import separate_projections
from flexround.models.surgery.fold_bn import FoldedStatistics, fold_batch_norm
from flexround.settings.schema import NEED_GROUPS

log = logging.getLogger(__name__)
_TOLERANCE, _MAX_SWEEPS = 1e-5, 200
_DEVIATIONS = 3.0  # a normal variable exceeds mean - 3 deviations with probability 0.9987


def prepare(
    model: nn.Module,
    steps: Sequence[str],
    groups: Sequence[EqualizationGroup] | None = None,
    statistics: MutableMapping[str, FoldedStatistics] | None = None,
) -> None:
    """Give attention separate projections, fold batch norms, then apply ``steps`` in order, all in place.

    Args:
        model: in evaluation mode.
        steps: values of `settings.schema.Preprocess`.
        groups: result of the architecture's ``equalization_groups``; None if it has no such function.
        statistics: of the batch norms if they are already folded.

    Raises:
        SettingsError: a step needs groups, or a ReLU6 remains where channels are equalized.
        InputError: a batch norm can't be folded.
    """
    if groups is None and (impossible := [step for step in steps if step in NEED_GROUPS]):
        raise SettingsError(
            f"preprocess: {impossible[0]} needs equalization groups and {type(model).__name__} offers none; "
            "drop the step, or set model.equalization for this checkpoint in params/scales"
        )
    separate_projections(model)
    if statistics is None:
        statistics = fold_batch_norm(model)
    replaced: list[str] = []
    for step in steps:
        match step:
            case "replace_relu6":
                replaced = replace_relu6(model)
            case "cross_layer_equalization":
                if any(isinstance(module, nn.ReLU6) for module in model.modules()):
                    raise SettingsError(f"preprocess: {step} moves clipping points; put replace_relu6 before it")
                equalize(model, groups or (), statistics)
            case "absorb_high_biases":
                absorb_high_biases(model, groups or (), statistics)
            case "restore_relu6":
                restore_relu6(model, replaced)


def replace_relu6(model: nn.Module) -> list[str]:
    """Replace every ReLU6 by a ReLU, because scaling a channel moves its clipping point (Nagel et al. 2019, 5.1.1).

    Returns:
        The names of the replaced modules. Their parents, and hooks on the parents, don't change.
    """
    clipped = {name: m for name, m in model.named_modules(remove_duplicate=False) if isinstance(m, nn.ReLU6)}
    for name, module in clipped.items():
        model.set_submodule(name, nn.ReLU(inplace=module.inplace))
    return list(clipped)


def restore_relu6(model: nn.Module, names: Iterable[str]) -> None:
    """Put ReLU6 back at ``names``; it then clips equalized channels at the wrong level.

    The published code of BRECQ and QDrop does this when it wraps MobileNetV2's blocks. This may explain the 0.18 %
    that FlexRound's appendix reports after equalization.
    """
    for name in names:
        model.set_submodule(name, nn.ReLU6(inplace=True))


@torch.no_grad()
def equalize(
    model: nn.Module, groups: Sequence[EqualizationGroup], statistics: MutableMapping[str, FoldedStatistics]
) -> None:
    """Rescale the channels between convolutions until their weight ranges are equal (Nagel et al. 2019, section 4.1).

    Groups share convolutions, so sweeps over the groups repeat until all scales are within a tolerance of 1. The model
    must have ReLU, not ReLU6.
    """
    for _ in range(_MAX_SWEEPS):
        change = max((_equalize_group(model, group, statistics) for group in groups), default=0.0)
        if change <= _TOLERANCE:
            return
    log.warning("equalization still changes scales by %.1e after %d sweeps; going on with these", change, _MAX_SWEEPS)


@torch.no_grad()
def absorb_high_biases(
    model: nn.Module, groups: Sequence[EqualizationGroup], statistics: MutableMapping[str, FoldedStatistics]
) -> None:
    """Move the almost surely positive part of each bias to the next layer (Nagel et al. 2019, section 4.1.3).

    Before a ReLU this part is c = max(0, beta - 3|gamma|), because relu(x) = relu(x - c) + c for x >= c. Without an
    activation in between it is beta. Absorption comes after `equalize`, if both are used. KeyError: a convolution had
    no batch norm, so that the distribution of its output is unknown.
    """
    for group in groups:
        for name, (conv, following) in zip(group.convs, itertools.pairwise(_convs(model, group)), strict=False):
            gamma, beta = statistics[name].gamma, statistics[name].beta
            surplus = (beta - _DEVIATIONS * gamma.abs()).clamp(min=0) if group.activation else beta
            conv.bias -= surplus
            following.bias += _response(following, surplus)
            statistics[name] = FoldedStatistics(gamma, beta - surplus)


def _equalize_group(
    model: nn.Module, group: EqualizationGroup, statistics: MutableMapping[str, FoldedStatistics]
) -> float:
    """Equalize one group; return the largest deviation of a scale from 1."""
    convs = _convs(model, group)
    ranges = [convs[0].weight.abs().amax((1, 2, 3))]
    ranges += [conv.weight.abs().amax((1, 2, 3) if conv.groups > 1 else (0, 2, 3)) for conv in convs[1:]]
    scales = _scales(torch.stack(ranges))
    for name, conv, following, scale in zip(group.convs, convs, convs[1:], scales, strict=False):
        inputs = (-1, 1, 1, 1) if following.groups > 1 else (1, -1, 1, 1)
        conv.weight.copy_(_times(conv.weight, (1 / scale).view(-1, 1, 1, 1)))
        if conv.bias is not None:
            conv.bias.copy_(_times(conv.bias, 1 / scale))
        following.weight.copy_(_times(following.weight, scale.view(inputs)))
        if name in statistics:
            old = statistics[name]
            statistics[name] = FoldedStatistics(_times(old.gamma, 1 / scale), _times(old.beta, 1 / scale))
    return float((scales - 1).abs().max())


def _scales(ranges: Tensor) -> Tensor:
    """Return the divisors, float64 (n - 1, C), that make all ranges (n, C) their channel's geometric mean.

    Divisors are 1 for a channel with an all-zero range, which can't be equalized.
    """
    ranges = ranges.double()
    scales = (ranges / ranges.log().mean(0).exp()).cumprod(0)[:-1]
    return torch.where((ranges > 0).all(0), scales, torch.ones_like(scales))


def _convs(model: nn.Module, group: EqualizationGroup) -> list[Any]:
    """Return a group's convolutions: each mixes all channels, or is depthwise with one filter per channel."""
    return [model.get_submodule(name) for name in group.convs]


def _response(conv: nn.Conv2d, constant: Tensor) -> Tensor:
    """Return the output (C_out,) of ``conv`` without bias for an image of ``constant`` (C_in,), away from borders."""
    if conv.groups > 1:
        return conv.weight.sum((1, 2, 3)) * constant
    return conv.weight.sum((2, 3)) @ constant


def _times(x: Tensor, factor: Tensor) -> Tensor:
    """Multiply in float64 and round once."""
    return (x.double() * factor).to(x.dtype)
