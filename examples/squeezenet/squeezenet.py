"""torchvision's SqueezeNet, which the paper does not use, and its blocks."""

import torch
import torchvision
from torch import nn

from flexround.models.blocks import Block, Site, identity

Fire = torchvision.models.squeezenet.Fire


def squeezenet(num_classes: int = 10, seed: int = 0) -> torchvision.models.SqueezeNet:
    """Return SqueezeNet 1.1 for 32x32 images: torchvision's, but for a stem of stride 1; ``seed`` gives its weights.

    Its logits pass a ReLU. From torchvision's start, near zero, they all die within some steps; from here they don't.
    """
    with torch.random.fork_rng(devices=()):
        torch.default_generator.manual_seed(seed)
        model = torchvision.models.squeezenet1_1(num_classes=num_classes, dropout=0.0)
        model.features[0].stride, model.features[0].padding = (1, 1), (1, 1)
        logits = model.classifier[1]
        nn.init.kaiming_normal_(logits.weight, nonlinearity="relu")
        nn.init.constant_(logits.bias, 3.0)
    return model


def blocks(model: torchvision.models.SqueezeNet) -> list[Block]:
    """Return the units of reconstruction: stem, Fire modules, classifier. A max-pooling is glue before the next one."""
    stem = nn.Sequential(*model.features[:2])
    units, before = [Block("stem", stem, (Site(stem[1], "output"),))], identity
    for number, module in enumerate(model.features[2:], start=2):
        if isinstance(module, Fire):
            sites = (Site(module.squeeze_activation, "output"), Site(module, "output"))
            units.append(Block(f"features.{number}", module, sites, before))
            before = identity
        else:
            before = module
    return [*units, Block("classifier", nn.Sequential(*model.classifier, nn.Flatten()))]
