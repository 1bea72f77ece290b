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

SCALES = ("mini", "paper", "real")
load_params = functools.cache(load.load_params)


class Case(NamedTuple):
    """A network of a scale in evaluation mode, what cuts it, its blocks, a batch, and which tokens are real."""

    model: nn.Module
    cut: Callable[[nn.Module], list[Block]]
    blocks: list[Block]
    x: torch.Tensor
    mask: torch.Tensor | None

    @property
    def image(self):
        return self.mask is None

    def last_output(self):
        """Return what the last block gives while the whole network runs; of texts, for the real tokens."""
        if self.image:
            return self.model(self.x)
        seen, types = [], {"token_type_ids": self.x[:, 1]} if hasattr(self.model.config, "type_vocab_size") else {}
        handle = self.blocks[-1].module.register_forward_hook(lambda _m, _x, y: seen.append(y))
        self.model.base_model(self.x[:, 0], attention_mask=self.mask.long(), **types)
        handle.remove()
        return (seen[0][0] if isinstance(seen[0], tuple) else seen[0])[self.mask]


def of_images(scale, task):
    return protocol.named(load_params(scale).scale, task).input_dtype == "float32"


def named():
    """Return (scale, task, checkpoint): of mini one for each factory, of the other scales those for images alone."""
    found, families = {}, set()
    for name in SCALES:
        params = load_params(name)
        families |= {checkpoint.model.blocks for checkpoint in params.scale.checkpoints.values()}
        for task, checkpoint in params.pairs():
            model = params.checkpoint(checkpoint).model
            if name == "mini" or of_images(name, task):
                found.setdefault((model.factory, model.blocks), (name, task, checkpoint))
    assert families == {blocks for _, blocks in found}, "every family of the scales is here"
    return found


NAMED = named()
images = pytest.mark.parametrize(
    "case", [names for names in NAMED.values() if of_images(*names[:2])], ids="-".join, indirect=True
)


@pytest.fixture(scope="module", params=NAMED.values(), ids="-".join)
def case(request):
    name, task, checkpoint = request.param
    scale = load_params(name).scale
    task, model = protocol.named(scale, task), scale.checkpoints[checkpoint].model
    torch.manual_seed(3)  # of factories without a seed
    generator = torch.Generator().manual_seed(0)
    network, cut = imports.load(model.factory)(**model.args, **task.head).eval(), imports.load(model.blocks)
    if task.input_dtype == "float32":
        x, mask = torch.randn(2, 3, *(min(side, 64) for side in task.input_shape[1:]), generator=generator), None
        fit_batch_norms(network, x)
    else:
        length = task.input_shape[-1]
        ids = torch.randint(1, network.config.vocab_size, (2, length), generator=generator)
        x = torch.stack([ids, (torch.arange(length) > 4).long().expand(2, -1)], 1)
        mask = torch.arange(length) < torch.tensor([[length], [length // 2]])
    return Case(network, cut, cut(network), x, mask)


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
    y, found = case.last_output(), case.x
    for block in case.blocks:
        x = block.before(found)
        kept = x.clone()
        found = block(x, case.mask)
        assert torch.equal(x, kept), f"{block.name} changes its input"
    if case.image:
        assert torch.equal(found, y)
        assert (y[0] - y[1]).norm() > 0.1 * y.norm()
    else:
        torch.testing.assert_close(found[case.mask], y)
        assert found.isfinite().all()


def test_no_two_blocks_share_a_parameter_glue_has_none_and_none_is_forgotten(case):
    assert len(case.blocks) == len({block.name for block in case.blocks})
    glue = [block.before for block in case.blocks if isinstance(block.before, nn.Module)]
    assert not any(list(before.parameters()) for before in glue)
    held = [id(parameter) for block in case.blocks for parameter in block.module.parameters()]
    assert len(held) == len(set(held))
    if case.image:
        assert held == [id(parameter) for parameter in case.model.parameters()]
    else:
        assert len(case.blocks) == case.model.config.num_hidden_layers


@images
def test_first_and_last_linear_stand_alone(case):
    model, blocks = case.model, case.blocks
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


@torch.no_grad()
def test_layers_read_quantized_tensors_and_nothing_else_is_quantized(case):
    """But the first layer of images, which reads them; what the last one reads is pooled, and blocks give quantized."""
    blocks, marks, read = case.cut(copy.deepcopy(case.model)), [], []
    for block in blocks:
        for site in block.sites:
            # A quantizer becomes a child of its site's module, and a Sequential would run it as one more layer.
            assert not isinstance(site.module, nn.Sequential)
            marks.append(Mark())
            attach.attach_quantizer(site, marks[-1])
    layers = [layer for block in blocks for layer in attach.weight_layers(block)]
    for layer in layers[1:] if case.image else layers:
        layer.register_forward_pre_hook(lambda _, arguments: read.append(arguments[0]))
    given, x = [], case.x
    for block in blocks:
        x = block(block.before(x), case.mask)
        given.append(x)
    assert len(read) == len(layers) - case.image
    quantized = read[:-1] + given[:-1] if case.image else read
    for tensor in quantized:
        assert torch.equal((tensor - 0.25) * 2, ((tensor - 0.25) * 2).round())
    assert [mark.calls for mark in marks] == [1] * len({id(tensor) for tensor in read})


def test_groups_of_mobilenet_and_efficientnet_follow_the_shortcuts():
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
