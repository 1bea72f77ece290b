"""A network that the paper does not use, and all the suite needs to know of it: a class and a block list.

CIFAR-10's ResNet-20 (He et al. 2016, section 4.2), shortcuts without parameters: a strided copy and zero channels.
"""

import torch
from torch import Tensor, nn

from flexround.models.blocks import Block, Site

STAGES = (16, 32, 64)
BLOCKS_PER_STAGE = 3


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut without parameters (option A)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.stride, self.padding = stride, (outputs - inputs) // 2

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output, (N, outputs, H / stride, W / stride)."""
        out = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        pad = self.padding
        shortcut = nn.functional.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, pad, pad))
        return torch.relu(out + shortcut)


class ResNet20(nn.Module):
    """Stem, nine residual blocks, classifier."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, STAGES[0], 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(STAGES[0])
        self.relu = nn.ReLU()
        inputs = STAGES[0]
        for number, outputs in enumerate(STAGES, start=1):
            strides = [1 if number == 1 else 2] + [1] * (BLOCKS_PER_STAGE - 1)
            blocks = [BasicBlock(inputs if i == 0 else outputs, outputs, stride) for i, stride in enumerate(strides)]
            setattr(self, f"layer{number}", nn.Sequential(*blocks))
            inputs = outputs
        self.linear = nn.Linear(inputs, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits, (N, num_classes)."""
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.linear(pool(x))


def pool(x: Tensor) -> Tensor:
    """Average over the image: (N, C, H, W) -> (N, C)."""
    return x.mean((2, 3))


def resnet20(num_classes: int = 10) -> ResNet20:
    """Return the network."""
    return ResNet20(num_classes)


def blocks(model: ResNet20) -> list[Block]:
    """Return the units of reconstruction: stem, residual blocks, classifier."""
    stem = Block("stem", nn.Sequential(model.conv1, model.bn1, model.relu), (Site(model.relu, "output"),))
    residual = [
        Block(f"{stage}.{number}", block, (Site(block.conv2, "input"), Site(block, "output")))
        for stage in ("layer1", "layer2", "layer3")
        for number, block in enumerate(getattr(model, stage))
    ]
    return [stem, *residual, Block("linear", model.linear, (), before=pool)]
