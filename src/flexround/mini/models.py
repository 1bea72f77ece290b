"""The mini scale's vision models: torchvision's classes, narrow, for 32x32 images.

A total stride of 32 would reduce such an image to one pixel, so one stride of 2 becomes 1. In ResNets it is the stem's.
In MobileNetV2, where depthwise convolutions on large maps are slow, it is the fourth stage's. The last maps are 2x2.
Everything else, including ``forward``, is torchvision's. Million multiply-adds per image at the default widths:
3.4 (ResNet-18), 6.3 (ResNet-50), 5.2 (MobileNetV2).
"""

from collections.abc import Sequence

import torchvision
from torch import nn
from torchvision.models.resnet import BasicBlock, Bottleneck

from flexround.models.tensors import seeded

# Expansion, channels, repeats and stride of each stage (Sandler et al. 2018, table 2), except the fourth stride.
_MOBILENETV2 = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 1),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


class NarrowResNet(torchvision.models.ResNet):
    """torchvision's ResNet with another number of planes and a stem of stride 1; ``forward`` is inherited."""

    def __init__(self, block: type[nn.Module], depths: Sequence[int], width: int, num_classes: int) -> None:
        # Not ResNet.__init__, which hard-codes 64 planes.
        nn.Module.__init__(self)
        self._norm_layer = nn.BatchNorm2d
        self.inplanes, self.dilation, self.groups, self.base_width = width, 1, 1, 64
        self.conv1 = nn.Conv2d(3, width, kernel_size=7, stride=1, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(kernel_size=3, stride=2, padding=1)
        for i, depth in enumerate(depths):
            setattr(self, f"layer{i + 1}", self._make_layer(block, width << i, depth, stride=2 if i else 1))
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(self.inplanes, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


def resnet18(width: int = 8, num_classes: int = 10, seed: int = 0) -> NarrowResNet:
    """Return a narrow ResNet-18 for 32x32 images, ``width`` planes in its first stage; maps from 16x16 to 2x2."""
    with seeded(seed):
        return NarrowResNet(BasicBlock, (2, 2, 2, 2), width, num_classes)


def resnet50(width: int = 8, num_classes: int = 10, seed: int = 0) -> NarrowResNet:
    """Return a narrow ResNet-50 for 32x32 images, ``width`` planes in its first stage; maps from 16x16 to 2x2."""
    with seeded(seed):
        return NarrowResNet(Bottleneck, (3, 4, 6, 3), width, num_classes)


def mobilenetv2(
    width_mult: float = 0.5, num_classes: int = 10, dropout: float = 0.2, seed: int = 0
) -> torchvision.models.MobileNetV2:
    """Return a narrow MobileNetV2 for 32x32 images; maps from 16x16 to 2x2, 1280 features at the end."""
    setting = [list(stage) for stage in _MOBILENETV2]
    with seeded(seed):
        return torchvision.models.MobileNetV2(num_classes, width_mult, setting, dropout=dropout)
