"""torchvision's MobileNetV2 as blocks: stem, inverted residuals, last convolution, classifier."""

import torch
import torchvision
from torch import nn

from flexround.models.blocks import Block, EqualizationGroup, Site, groups_between_shortcuts, links

mobilenet_v2 = torchvision.models.mobilenet_v2


def folded(num_classes: int = 1000) -> torchvision.models.MobileNetV2:
    """Return a MobileNetV2 with biases instead of batch norms, as after folding."""
    model = mobilenet_v2(num_classes=num_classes, norm_layer=nn.Identity)
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            module.bias = nn.Parameter(torch.zeros(module.out_channels))
    return model


def blocks(model: torchvision.models.MobileNetV2) -> list[Block]:
    """Cut a MobileNetV2 into the 20 units of BRECQ (Li et al. 2021).

    Call it after all surgery: the sites are the current modules of ``model``.
    """
    features = [Block(f"features.{i}", module, _sites(module)) for i, module in enumerate(model.features)]
    pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return [*features, Block("classifier", model.classifier, before=pool)]


def equalization_groups(model: torchvision.models.MobileNetV2) -> list[EqualizationGroup]:
    """Return the groups of convolutions that can be equalized, in forward order (Nagel et al. 2019, section 4.1).

    Links between neighbouring blocks follow a projection, so they have no activation.
    """
    return groups_between_shortcuts(
        (links(module, f"features.{i}"), getattr(module, "use_res_connect", False))
        for i, module in enumerate(model.features)
    )


def _sites(module: nn.Module) -> tuple[Site, ...]:
    """Return the quantized tensors of one entry of ``features``: each ReLU6's output, and the entry's output.

    The ReLU6 itself is the site, not its parent: a Sequential would run an attached quantizer as one more layer.
    """
    units = [unit for unit in module.modules() if isinstance(unit, torchvision.ops.Conv2dNormActivation)]
    tensors = [unit[-1] for unit in units] + ([] if module in units else [module])
    return tuple(Site(tensor, "output") for tensor in tensors)
