"""What makes the real MobileNetV2 hard to quantize per tensor, for the mini scale's: uneven channels, high biases.

Trained for minutes, a small MobileNetV2 has channels of similar ranges and loses little at 4 bit. The released ones
have channels whose ranges differ by orders of magnitude, and channels that are almost always active (Nagel et al. 2019,
sections 3 and 4); that is what cross-layer equalization and the absorption of high biases are for. Here the inverse of
equalization puts the first in after training, without changing what the network computes, and the start of some batch
norms before training the second.
"""

import itertools
from collections.abc import Iterable
from typing import Any

import torch
import torchvision
from torch import Tensor, nn

from flexround.machine.seeding import derive
from flexround.models.mobilenetv2 import equalization_groups

CEILING = 6.0  # of ReLU6
HIGH = {"beta": 2.0, "gamma": 0.5}  # four deviations above zero, eight below the ceiling


@torch.no_grad()
def raise_biases(model: torchvision.models.MobileNetV2, share: float) -> None:
    """Let a share of the channels before each ReLU6 start far above zero; in place, before training."""
    generator = torch.Generator().manual_seed(derive("high biases"))
    for unit in model.modules():
        if isinstance(unit, torchvision.ops.Conv2dNormActivation):
            norm = unit[1]
            chosen = torch.rand(len(norm.bias), generator=generator) < share
            norm.bias[chosen], norm.weight[chosen] = HIGH["beta"], HIGH["gamma"]


@torch.no_grad()
def spread_ranges(model: torchvision.models.MobileNetV2, batches: Iterable[Tensor], factor: float) -> None:
    """Multiply each channel between two convolutions by a random scale and divide the next one's weights by it.

    The scales are log-uniform in 1/factor to factor. The network computes the same up to rounding: where a ReLU6 lies
    between, no scale lifts a channel above 6, and a channel that was clipped keeps scale 1.

    Args:
        model: in evaluation mode, with its batch norms; changed in place.
        batches: inputs (B, 3, H, W) that show the largest value of each channel.
        factor: at least 1, which changes nothing.
    """
    layers = [module for module in model.modules() if isinstance(module, nn.Conv2d | nn.BatchNorm2d)]
    norms = dict(zip(layers[::2], layers[1::2], strict=True))
    highest = largest_outputs(model, norms.values(), batches)
    generator = torch.Generator().manual_seed(derive("uneven ranges"))
    for group in equalization_groups(model):
        convs: list[Any] = [model.get_submodule(name) for name in group.convs]
        for conv, following in itertools.pairwise(convs):
            norm: Any = norms[conv]
            scale = factor ** (2 * torch.rand(len(norm.weight), generator=generator) - 1)
            if group.activation:
                most = highest[norm].clamp(min=1e-3)
                scale = torch.where(most < CEILING, torch.minimum(scale, CEILING / most), 1.0)
            norm.weight *= scale
            norm.bias *= scale
            following.weight /= scale.view((-1, 1, 1, 1) if following.groups > 1 else (1, -1, 1, 1))


def largest_outputs(model: nn.Module, norms: Iterable[nn.Module], batches: Iterable[Tensor]) -> dict[nn.Module, Tensor]:
    """Return the largest output (C,) of each of ``norms`` over ``batches`` of inputs of ``model``."""
    highest: dict[nn.Module, Tensor] = {}

    def note(norm: nn.Module, _: tuple[Tensor, ...], output: Tensor) -> None:
        most = output.amax((0, 2, 3))
        highest[norm] = torch.maximum(highest[norm], most) if norm in highest else most

    hooks = [norm.register_forward_hook(note) for norm in norms]
    for batch in batches:
        model(batch)
    for hook in hooks:
        hook.remove()
    return highest
