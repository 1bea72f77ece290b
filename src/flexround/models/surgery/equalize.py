"""Cross-layer equalization and absorption of high biases, on a model with folded batch norms (Nagel et al. 2019).

Both move values between neighbouring convolutions. With ReLU between them equalization keeps what the model computes;
absorption keeps it where no padding and no rare small activation is involved. ``model`` is changed in place, ``groups``
are its architecture's ``equalization_groups``, and ``statistics`` those of `fold_batch_norm`, updated to the changes.
"""

import itertools
import logging
from collections.abc import MutableMapping, Sequence

import torch
from torch import Tensor, nn

from flexround.errors import InputError
from flexround.models.blocks import EqualizationGroup
from flexround.models.surgery.fold_bn import FoldedStatistics

log = logging.getLogger(__name__)
_TOLERANCE, _MAX_SWEEPS = 1e-5, 200
_DEVIATIONS = 3.0  # a normal variable lies above mean - 3 deviations with probability 0.9987


@torch.no_grad()
def equalize(
    model: nn.Module, groups: Sequence[EqualizationGroup], statistics: MutableMapping[str, FoldedStatistics]
) -> None:
    """Rescale the channels between convolutions until their weight ranges are equal (Nagel et al. 2019, section 4.1).

    Groups share convolutions, so they are visited in turn until no scale differs from 1 by more than a tolerance. The
    model must have ReLU, not ReLU6.
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
    """Move the part of each bias that is almost always above zero to the next layer (Nagel et al. 2019, section 4.1.3).

    That part is c = max(0, beta - 3|gamma|) before a ReLU, where relu(x) = relu(x - c) + c for x >= c, and all of beta
    where the next convolution follows directly. It comes after `equalize`, if that is done.

    Raises:
        InputError: a convolution had no batch norm, so the distribution of its output is unknown.
    """
    for group in groups:
        for name, (conv, following) in zip(group.convs, itertools.pairwise(_convs(model, group)), strict=False):
            if name not in statistics or conv.bias is None or following.bias is None:
                raise InputError(f"{name}: absorbing its bias needs folded batch norms; leave absorb_high_biases out")
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
    scales = _scales(torch.stack([convs[0].weight.abs().amax((1, 2, 3)), *map(_input_range, convs[1:])]))
    for name, conv, following, scale in zip(group.convs, convs, convs[1:], scales, strict=False):
        _scale_output(conv, 1 / scale)
        _scale_input(following, scale)
        if name in statistics:
            old = statistics[name]
            statistics[name] = FoldedStatistics(_times(old.gamma, 1 / scale), _times(old.beta, 1 / scale))
    return float((scales - 1).abs().max())


def _scales(ranges: Tensor) -> Tensor:
    """Return float64 (n - 1, C), the divisors that make all ranges (n, C) the geometric mean of their channel.

    They are 1 for a channel with an all-zero range, where nothing can be equalized.
    """
    ranges = ranges.double()
    scales = (ranges / ranges.log().mean(0).exp()).cumprod(0)[:-1]
    return torch.where((ranges > 0).all(0), scales, torch.ones_like(scales))


def _convs(model: nn.Module, group: EqualizationGroup) -> list[nn.Conv2d]:
    """Return the convolutions of a group: each mixes all channels, or is depthwise with one filter per channel."""
    convs = []
    for name in group.convs:
        conv = model.get_submodule(name)
        if not isinstance(conv, nn.Conv2d) or not (
            conv.groups == 1 or conv.groups == conv.in_channels == conv.out_channels
        ):
            raise InputError(f"{name}: {conv} can't be equalized; leave it out of the equalization groups")
        convs.append(conv)
    return convs


def _input_range(conv: nn.Conv2d) -> Tensor:
    """Return (C_in,) the largest |w| that each input channel meets."""
    return conv.weight.abs().amax((1, 2, 3) if conv.groups > 1 else (0, 2, 3))


def _scale_output(conv: nn.Conv2d, factor: Tensor) -> None:
    """Multiply the output channels by ``factor`` (C_out,)."""
    conv.weight.copy_(_times(conv.weight, factor.view(-1, 1, 1, 1)))
    if conv.bias is not None:
        conv.bias.copy_(_times(conv.bias, factor))


def _scale_input(conv: nn.Conv2d, factor: Tensor) -> None:
    """Multiply the weights of each input channel by ``factor`` (C_in,)."""
    shape = (-1, 1, 1, 1) if conv.groups > 1 else (1, -1, 1, 1)
    conv.weight.copy_(_times(conv.weight, factor.view(shape)))


def _response(conv: nn.Conv2d, constant: Tensor) -> Tensor:
    """Return (C_out,) what ``conv`` without its bias makes of an image of ``constant`` (C_in,), away from borders."""
    if conv.groups > 1:
        return conv.weight.sum((1, 2, 3)) * constant
    return conv.weight.sum((2, 3)) @ constant


def _times(x: Tensor, factor: Tensor) -> Tensor:
    """Multiply in float64 and round once."""
    return (x.double() * factor).to(x.dtype)
