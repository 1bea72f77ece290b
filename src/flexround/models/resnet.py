"""torchvision's ResNets as blocks: stem, residual blocks, classifier."""

import torchvision
from torch import nn

from flexround.models.blocks import Block, Site, identity

resnet18 = torchvision.models.resnet18
resnet50 = torchvision.models.resnet50


def blocks(model: torchvision.models.ResNet) -> list[Block]:
    """Cut a ResNet into the units of BRECQ (Li et al. 2021): 10 for ResNet-18, 18 for ResNet-50.

    Call it after the batch norms are folded: the stem holds the current modules of ``model``.
    """
    # The stem's tensor is quantized before the max-pooling, so the pooling is glue of the first residual block.
    stem = Block("stem", nn.Sequential(model.conv1, model.bn1, model.relu), (Site(model.relu, "output"),))
    residual = [
        Block(f"layer{stage}.{i}", block, _sites(block), model.maxpool if (stage, i) == (1, 0) else identity)
        for stage, layer in enumerate((model.layer1, model.layer2, model.layer3, model.layer4), start=1)
        for i, block in enumerate(layer)
    ]
    head = Block("fc", model.fc, before=nn.Sequential(model.avgpool, nn.Flatten()))
    return [stem, *residual, head]


def _sites(block: nn.Module) -> tuple[Site, ...]:
    """Return the quantized tensors of a residual block.

    One ReLU module computes all activations of a block, so inner activations are quantized at the next convolution.
    """
    inner = ("conv2", "conv3") if isinstance(block, torchvision.models.resnet.Bottleneck) else ("conv2",)
    return (*(Site(block.get_submodule(name), "input") for name in inner), Site(block, "output"))
