"""CIFAR-10's ResNets (He et al. 2016, section 4.2) and their blocks; parameter names match akamaster's weights."""

import torch
from torch import Tensor, nn

from flexround.models.blocks import Block, Site

WIDTHS = (16, 32, 64)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut without parameters (option A): a strided copy and zero channels."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.stride, self.padding = stride, (outputs - inputs) // 2

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output, (N, outputs, H / stride, W / stride), for x (N, inputs, H, W)."""
        out = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        if self.stride > 1:
            x = nn.functional.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.padding, self.padding))
        return torch.relu(out + x)


class CifarResNet(nn.Module):
    """Stem, three stages of residual blocks, classifier."""

    def __init__(self, blocks_per_stage: int, num_classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, WIDTHS[0], 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(WIDTHS[0])
        self.relu = nn.ReLU()
        stages, inputs = [], WIDTHS[0]
        for outputs in WIDTHS:
            first = BasicBlock(inputs, outputs, 1 if outputs == inputs else 2)
            stages.append(nn.Sequential(first, *(BasicBlock(outputs, outputs, 1) for _ in range(blocks_per_stage - 1))))
            inputs = outputs
        self.layer1, self.layer2, self.layer3 = stages
        self.linear = nn.Linear(inputs, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (N, num_classes) for images (N, 3, H, W)."""
        x = self.relu(self.bn1(self.conv1(x)))
        return self.linear(pool(self.layer3(self.layer2(self.layer1(x)))))


def pool(x: Tensor) -> Tensor:
    """Average over the image: (N, C, H, W) -> (N, C)."""
    return x.mean((2, 3))


def resnet(depth: int, num_classes: int = 10) -> CifarResNet:
    """Return the network with 6n + 2 layers; depths are 20, 32, 44, 56, ..."""
    return CifarResNet(depth // 6, num_classes)


def blocks(model: CifarResNet) -> list[Block]:
    """Return the units of reconstruction, as BRECQ cuts ResNets: stem, residual blocks, classifier.

    Call it after the batch norms are folded: the stem holds the current modules of ``model``.
    """
    stem = Block("stem", nn.Sequential(model.conv1, model.bn1, model.relu), (Site(model.relu, "output"),))
    residual = [
        Block(f"{stage}.{number}", block, (Site(block.conv2, "input"), Site(block, "output")))
        for stage in ("layer1", "layer2", "layer3")
        for number, block in enumerate(getattr(model, stage))
    ]
    return [stem, *residual, Block("linear", model.linear, (), before=pool)]
