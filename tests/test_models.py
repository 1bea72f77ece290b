"""The contract of every model family that the scales name, and the mini factories."""

import copy
import functools
import hashlib
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from torch import nn

from flexround import imports
from flexround.mini import models as mini
from flexround.models import efficientnet_lite, mobilenetv2
from flexround.models.blocks import Block, EqualizationGroup
from flexround.models.surgery import attach
from flexround.settings import load
from flexround.tasks import protocol

load_params = functools.cache(load.load_params)


class Case(NamedTuple):
    """A network of a scale in evaluation mode, what cuts it, its blocks, and a batch of images."""

    model: nn.Module
    cut: Callable[[nn.Module], list[Block]]
    blocks: list[Block]
    x: torch.Tensor


def named():
    """Return (scale, task, checkpoint) for each factory of image networks in the scales."""
    found = {}
    for params in map(load_params, ("mini", "paper", "real")):
        for task, checkpoint in params.pairs():
            model = params.checkpoint(checkpoint).model
            if protocol.named(params.scale, task).input_dtype == "float32":
                found.setdefault((model.factory, model.blocks), (params.scale.name, task, checkpoint))
    return found.values()


@pytest.fixture(scope="module", params=named(), ids="-".join)
def case(request):
    name, task, checkpoint = request.param
    scale = load_params(name).scale
    task, model = protocol.named(scale, task), scale.checkpoints[checkpoint].model
    torch.manual_seed(3)  # of factories without a seed
    network, cut = imports.load(model.factory)(**model.args, **task.head).eval(), imports.load(model.blocks)
    size = [min(side, 64) for side in task.input_shape[1:]]
    x = torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(0))
    fit_batch_norms(network, x)
    return Case(network, cut, cut(network), x)


@torch.no_grad()
def fit_batch_norms(model, x):
    """Give the batch norms statistics of ``x``, without which an untrained network's output hardly depends on it."""
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    for norm in norms:
        norm.train().momentum = 1.0
    model(x)
    for norm in norms:
        norm.eval()


@torch.no_grad()
def test_blocks_equal_the_model_and_none_changes_its_input(case):
    y, found = case.model(case.x), case.x
    for block in case.blocks:
        x = block.before(found)
        kept = x.clone()
        found = block(x)
        assert torch.equal(x, kept), f"{block.name} changes its input"
    assert torch.equal(found, y)
    assert (y[0] - y[1]).norm() > 0.1 * y.norm()


def test_each_parameter_is_in_one_block_and_the_ends_stand_alone(case):
    model, blocks = case.model, case.blocks
    assert len(blocks) == len({block.name for block in blocks})
    held = [id(parameter) for block in blocks for parameter in block.module.parameters()]
    assert held == [id(parameter) for parameter in model.parameters()]
    linears = [module for module in model.modules() if isinstance(module, nn.Conv2d | nn.Linear)]
    for block, linear in ((blocks[0], linears[0]), (blocks[-1], linears[-1])):
        assert [module for module in block.module.modules() if isinstance(module, nn.Conv2d | nn.Linear)] == [linear]
    assert not blocks[-1].sites


class Mark(nn.Module):
    """A quantizer that puts tensors onto a coarse grid and counts them."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return torch.round(x * 2) / 2 + 0.25


def watched(blocks):
    """Put a mark on each site; return the marks, and a list of what the layers will read."""
    marks, read = [], []
    for site in (site for block in blocks for site in block.sites):
        # A quantizer becomes a child of its site's module, and a Sequential would run it as one more layer.
        assert not isinstance(site.module, nn.Sequential)
        marks.append(Mark())
        attach.attach_quantizer(site, marks[-1])
    for layer in (layer for block in blocks for layer in attach.weight_layers(block)):
        layer.register_forward_pre_hook(lambda _, arguments: read.append(arguments[0]))
    return marks, read


def check_marked(tensors):
    for tensor in tensors:
        assert torch.equal((tensor - 0.25) * 2, ((tensor - 0.25) * 2).round())


@torch.no_grad()
def test_layers_read_quantized_tensors_and_nothing_else_is(case):
    """But the first layer, which reads images; what the last one reads is pooled, and blocks give quantized."""
    blocks, given, x = case.cut(copy.deepcopy(case.model)), [], case.x
    marks, read = watched(blocks)
    for block in blocks:
        x = block(block.before(x))
        given.append(x)
    check_marked(read[1:-1] + given[:-1])
    assert [mark.calls for mark in marks] == [1] * len({id(tensor) for tensor in read[1:]})


def test_equalization_groups_follow_the_shortcuts():
    def groups(*chains):
        return [EqualizationGroup(tuple(chain), activation=len(chain) > 2) for chain in chains]

    inner = [[f"features.{i}.conv.0.0", f"features.{i}.conv.1.0", f"features.{i}.conv.2"] for i in range(2, 18)]
    first = ["features.0.0", "features.1.conv.0.0", "features.1.conv.1"]
    joined = groups(first, (first[-1], inner[0][0]), *inner, (inner[-1][-1], "features.18.0"))
    assert mobilenetv2.equalization_groups(mobilenetv2.mobilenet_v2()) == joined
    # At a quarter of the width the first block has as many outputs as inputs, hence a shortcut, which breaks its chain.
    narrow = mobilenetv2.equalization_groups(mini.mobilenetv2(width_mult=0.25))
    assert [group.convs for group in narrow[:2]] == [tuple(first[1:]), tuple(inner[0])]

    inner = [[f"_blocks.{i}._{part}_conv" for part in ("expand", "depthwise", "project")] for i in range(16)]
    first = ["_conv_stem", *inner[0][1:]]
    joined = groups(first, (first[-1], inner[1][0]), *inner[1:], (inner[-1][-1], "_conv_head"))
    assert efficientnet_lite.equalization_groups(efficientnet_lite.EfficientNetLite0()) == joined


def test_efficientnet_lite_has_the_tensors_of_the_released_file():
    state = efficientnet_lite.EfficientNetLite0().state_dict()
    listed = "\n".join(f"{name} {tuple(value.shape)}" for name, value in state.items())
    released = "f19038aa9e94bf262b0215da87b05190b42be4fca8356448dc428d5a7e017bb6"  # of the file's own names and shapes
    assert hashlib.sha256(listed.encode()).hexdigest() == released


@pytest.mark.parametrize("kernel", [3, 5])
@pytest.mark.parametrize("size", [4, 14])
@torch.no_grad()
def test_convolutions_of_stride_2_are_padded_as_tensorflow_s(kernel, size):
    conv = efficientnet_lite.SameConv2d(1, 1, kernel, 2)
    x = torch.randn(1, 1, size, size, generator=torch.Generator().manual_seed(0))
    # TensorFlow's rule for "SAME": as many zeros as give ceil(size / 2) outputs, the smaller half in front.
    whole = max((-(-size // 2) - 1) * 2 + kernel - size, 0)
    padded = nn.functional.pad(x, (whole // 2, whole - whole // 2) * 2)
    expected = nn.functional.conv2d(padded, conv.weight, stride=2)
    assert expected.shape == (1, 1, size // 2, size // 2)
    torch.testing.assert_close(conv(x), expected)
