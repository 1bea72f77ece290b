"""torchvision's MobileNetV2 as blocks: stem, inverted residuals, last convolution, classifier."""

import torchvision
from torch import nn

from flexround.models.blocks import Block, Site
from flexround.models.groups import EqualizationGroup, Link, groups_between_shortcuts

mobilenet_v2 = torchvision.models.mobilenet_v2


def blocks(model: torchvision.models.MobileNetV2) -> list[Block]:
    """Cut a MobileNetV2 into the 20 units of BRECQ (Li et al. 2021).

    Call it after all surgery: the sites are the modules that ``model`` has at that time.
    """
    features = [Block(f"features.{i}", module, _sites(module)) for i, module in enumerate(model.features)]
    pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return [*features, Block("classifier", model.classifier, before=pool)]


def equalization_groups(model: torchvision.models.MobileNetV2) -> list[EqualizationGroup]:
    """Return the groups of convolutions that can be equalized, in forward order (Nagel et al. 2019, section 4.1).

    Links between neighbouring blocks follow a projection, hence have no activation.
    """
    return groups_between_shortcuts(
        (_links(module, f"features.{i}"), getattr(module, "use_res_connect", False))
        for i, module in enumerate(model.features)
    )


def _units(module: nn.Module) -> list[nn.Sequential]:
    """Return the (convolution, batch norm, activation) triples in ``module``, itself included."""
    return [unit for unit in module.modules() if isinstance(unit, torchvision.ops.Conv2dNormActivation)]


def _sites(module: nn.Module) -> tuple[Site, ...]:
    """Return the quantized tensors of one entry of ``features``: after each ReLU6, and the output.

    After a ReLU6 the activation itself is the site: its parent is a Sequential, which would run whatever is hung on it.
    """
    units = _units(module)
    tensors = [unit[-1] for unit in units] + ([] if module in units else [module])
    return tuple(Site(tensor, "output") for tensor in tensors)


def _links(module: nn.Module, name: str) -> list[Link]:
    """Return the convolutions of one entry of ``features``; a block's projection has no activation."""
    activated = [unit[0] for unit in _units(module)]
    return [
        Link(f"{name}.{inner}", depthwise=conv.groups == conv.in_channels > 1, activation=conv in activated)
        for inner, conv in module.named_modules()
        if isinstance(conv, nn.Conv2d)
    ]
