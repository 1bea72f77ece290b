"""EfficientNet-Lite0 and its blocks. Parameter names match the released weights, converted from TensorFlow."""

from torch import Tensor, nn

from flexround.models.blocks import Block, EqualizationGroup, Link, Site, groups_between_shortcuts, links

STEM, HEAD, EPS = 32, 1280, 1e-3
# Per stage: outputs, kernel, stride of the first block, expansion factor, blocks.
_FIRST = ((16, 3, 1, 1, 1), (24, 3, 2, 6, 2), (40, 5, 2, 6, 2), (80, 3, 2, 6, 3))
STAGES = (*_FIRST, (112, 5, 1, 6, 3), (192, 5, 2, 6, 4), (320, 3, 1, 6, 1))


class SameConv2d(nn.Conv2d):
    """A convolution with TensorFlow's padding "same"; the stride must divide the sides of inputs (N, C, H, W).

    With stride 2 the number of zeros is odd: an image has one more zero after it than before it.
    """

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> None:
        before, more = divmod(kernel - stride, 2)
        super().__init__(inputs, outputs, kernel, stride, before, groups=groups, bias=False)
        self.more = more
        # PyTorch's record of the padding on each side, used to unfold a layer's input.
        self._reversed_padding_repeated_twice = [before, before + more] * 2

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        padded = nn.functional.pad(input, (0, self.more, 0, self.more)) if self.more else input
        return super()._conv_forward(padded, weight, bias)


class InvertedResidual(nn.Module):
    """Expansion, depthwise convolution, projection; a shortcut where input and output have the same shape."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, factor: int) -> None:
        super().__init__()
        self.expands, self.shortcut, inner = factor > 1, stride == 1 and inputs == outputs, inputs * factor
        if self.expands:
            self._expand_conv, self._bn0 = SameConv2d(inputs, inner, 1), nn.BatchNorm2d(inner, EPS)
            self.expanded = nn.ReLU6()
        self._depthwise_conv = SameConv2d(inner, inner, kernel, stride, inner)
        self._bn1, self.filtered = nn.BatchNorm2d(inner, EPS), nn.ReLU6()
        self._project_conv, self._bn2 = SameConv2d(inner, outputs, 1), nn.BatchNorm2d(outputs, EPS)

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output, (N, outputs, H / stride, W / stride), for x (N, inputs, H, W)."""
        out = self.expanded(self._bn0(self._expand_conv(x))) if self.expands else x
        out = self.filtered(self._bn1(self._depthwise_conv(out)))
        out = self._bn2(self._project_conv(out))
        return out + x if self.shortcut else out


class EfficientNetLite0(nn.Module):
    """EfficientNet-Lite0 without the dropout before its classifier."""

    def __init__(self, num_classes: int = 1000) -> None:
        super().__init__()
        self._conv_stem, self._bn0, self.stem = SameConv2d(3, STEM, 3, 2), nn.BatchNorm2d(STEM, EPS), nn.ReLU6()
        self._blocks, inputs = nn.ModuleList(), STEM
        for outputs, kernel, stride, factor, count in STAGES:
            for i in range(count):
                self._blocks.append(InvertedResidual(inputs, outputs, kernel, 1 if i else stride, factor))
                inputs = outputs
        self._conv_head, self._bn1, self.head = SameConv2d(inputs, HEAD, 1), nn.BatchNorm2d(HEAD, EPS), nn.ReLU6()
        self._fc = nn.Linear(HEAD, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (N, num_classes) for images (N, 3, H, W) with sides divisible by 32."""
        x = self.stem(self._bn0(self._conv_stem(x)))
        for block in self._blocks:
            x = block(x)
        return self._fc(pool(self.head(self._bn1(self._conv_head(x)))))


def pool(x: Tensor) -> Tensor:
    """Average over the image: (N, C, H, W) -> (N, C)."""
    return nn.functional.adaptive_avg_pool2d(x, 1).flatten(1)


def blocks(model: EfficientNetLite0) -> list[Block]:
    """Return the 19 units of reconstruction, as BRECQ cuts MobileNetV2; call it after all surgery."""
    stem = nn.Sequential(model._conv_stem, model._bn0, model.stem)
    head = nn.Sequential(model._conv_head, model._bn1, model.head)
    inner = [Block(f"blocks.{i}", block, _sites(block)) for i, block in enumerate(model._blocks)]
    first, last = (Block(n, m, (Site(m[-1], "output"),)) for n, m in (("stem", stem), ("head", head)))
    return [first, *inner, last, Block("fc", model._fc, before=pool)]


def equalization_groups(model: EfficientNetLite0) -> list[EqualizationGroup]:
    """Return the groups of convolutions that can be equalized, in forward order (Nagel et al. 2019, section 4.1)."""
    first, last = [Link("_conv_stem", False, True)], [Link("_conv_head", False, True)]
    inner = [(links(block, f"_blocks.{i}"), bool(block.shortcut)) for i, block in enumerate(model._blocks)]
    return groups_between_shortcuts([(first, False), *inner, (last, False)])


def _sites(block: nn.Module) -> tuple[Site, ...]:
    """Return the quantized tensors of a block: the output of each activation, and the block's output."""
    inside = [module for name, module in block.named_children() if name in ("expanded", "filtered")]
    return tuple(Site(module, "output") for module in (*inside, block))
