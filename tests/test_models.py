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
from flexround.models.blocks import Block, run
from flexround.models.groups import EqualizationGroup
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
    found = {}
    for name in SCALES:
        params = load_params(name)
        for task, checkpoint in params.pairs():
            model = params.checkpoint(checkpoint).model
            if name == "mini" or of_images(name, task):
                found.setdefault((model.factory, model.blocks), (name, task, checkpoint))
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


def test_every_family_of_the_scales_is_here():
    scales = [load_params(name).scale for name in SCALES]
    families = {checkpoint.model.blocks for scale in scales for checkpoint in scale.checkpoints.values()}
    assert families == {blocks for _, blocks in NAMED}


@torch.no_grad()
def test_blocks_equal_the_model(case):
    y, found = case.last_output(), run(case.blocks, case.x, case.mask)
    if case.image:
        assert torch.equal(found, y)
        assert (y[0] - y[1]).norm() > 0.1 * y.norm()
    else:
        torch.testing.assert_close(found[case.mask], y)
        assert found.isfinite().all()


@torch.no_grad()
def test_no_block_changes_its_input(case):
    x = case.x
    for block in case.blocks:
        x = block.before(x)
        kept = x.clone()
        y = block(x, case.mask)
        assert torch.equal(x, kept), block.name
        x = y


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
    """But the first layer of images, which reads them; what the last one reads is pooled."""
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
    run(blocks, case.x, case.mask)
    assert len(read) == len(layers) - case.image
    for tensor in read[:-1] if case.image else read:
        assert torch.equal((tensor - 0.25) * 2, ((tensor - 0.25) * 2).round())
    assert [mark.calls for mark in marks] == [1] * len({id(tensor) for tensor in read})


@images
@torch.no_grad()
def test_the_last_site_of_a_block_is_its_output_and_those_inside_follow_an_activation(case):
    x = case.x
    for block in case.blocks:
        seen, handles = [], []
        for site in block.sites:
            if site.where == "input":
                hook = site.module.register_forward_pre_hook(lambda _m, x, seen=seen: seen.append((x[0], x[0].clone())))
            else:
                hook = site.module.register_forward_hook(lambda _m, _x, y, seen=seen: seen.append((y, y.clone())))
            handles.append(hook)
        x = block.before(x)
        y = block.module(x)
        for handle in handles:
            handle.remove()
        assert len(seen) == len(block.sites)
        if block is not case.blocks[-1]:
            assert block.sites[-1].where == "output"
            assert seen[-1][0] is y, block.name
        for _, inside in seen[:-1]:
            assert inside.min() == 0, block.name
            assert not any(torch.equal(inside, end) for end in (x, y)), block.name
        x = y


def test_mobilenet_groups_follow_the_shortcuts():
    model = mobilenetv2.mobilenet_v2()
    groups = mobilenetv2.equalization_groups(model)
    assert groups[:3] == [
        EqualizationGroup(("features.0.0", "features.1.conv.0.0", "features.1.conv.1"), activation=True),
        EqualizationGroup(("features.1.conv.1", "features.2.conv.0.0"), activation=False),
        EqualizationGroup(("features.2.conv.0.0", "features.2.conv.1.0", "features.2.conv.2"), activation=True),
    ]
    assert groups[3:-1] == [
        EqualizationGroup((f"features.{i}.conv.0.0", f"features.{i}.conv.1.0", f"features.{i}.conv.2"), activation=True)
        for i in range(3, 18)
    ]
    assert groups[-1] == EqualizationGroup(("features.17.conv.2", "features.18.0"), activation=False)


def test_a_shortcut_in_the_first_block_breaks_its_chain():
    # At a quarter of the width the first block has as many outputs as inputs, hence a shortcut.
    model = mini.mobilenetv2(width_mult=0.25)
    assert model.features[1].use_res_connect
    groups = mobilenetv2.equalization_groups(model)
    assert groups[0].convs == ("features.1.conv.0.0", "features.1.conv.1")
    assert groups[1].convs == ("features.2.conv.0.0", "features.2.conv.1.0", "features.2.conv.2")


def test_efficientnet_lite_has_the_tensors_of_the_released_file():
    state = efficientnet_lite.EfficientNetLite0().state_dict()
    listed = "\n".join(f"{name} {tuple(value.shape)}" for name, value in state.items())
    released = "f19038aa9e94bf262b0215da87b05190b42be4fca8356448dc428d5a7e017bb6"  # of the file's own names and shapes
    assert hashlib.sha256(listed.encode()).hexdigest() == released


@pytest.mark.parametrize("kernel", [3, 5])
@pytest.mark.parametrize("size", [4, 14, 224])
@torch.no_grad()
def test_convolutions_of_stride_2_are_padded_as_tensorflow_s(kernel, size):
    conv = efficientnet_lite.SameConv2d(1, 1, kernel, 2)
    x = torch.randn(1, 1, size, size, generator=torch.Generator().manual_seed(0))
    y = conv(x)
    # TensorFlow's rule for "SAME": as many zeros as give ceil(size / 2) outputs, the smaller half in front.
    whole = max((-(-size // 2) - 1) * 2 + kernel - size, 0)
    assert y.shape == (1, 1, size // 2, size // 2)
    padded = torch.zeros(size + whole, size + whole)
    start = whole // 2
    padded[start : start + size, start : start + size] = x[0, 0]
    for row, column in ((0, 0), (0, size // 2 - 1), (size // 2 - 1, 0), (size // 2 - 1, size // 2 - 1), (1, 1)):
        seen = padded[2 * row : 2 * row + kernel, 2 * column : 2 * column + kernel]
        torch.testing.assert_close(y[0, 0, row, column], (seen * conv.weight[0, 0]).sum())


def test_efficientnet_lite_groups_follow_the_shortcuts():
    groups = efficientnet_lite.equalization_groups(efficientnet_lite.EfficientNetLite0())
    names = {i: [f"_blocks.{i}._{part}_conv" for part in ("expand", "depthwise", "project")] for i in range(16)}
    inside = [EqualizationGroup(tuple(names[i]), activation=True) for i in range(1, 16)]
    assert groups == [
        EqualizationGroup(("_conv_stem", *names[0][1:]), activation=True),
        EqualizationGroup((names[0][2], names[1][0]), activation=False),
        *inside,
        EqualizationGroup((names[15][2], "_conv_head"), activation=False),
    ]


@pytest.mark.parametrize("factory", [mini.resnet18, mini.resnet50, mini.mobilenetv2])
def test_mini_models_depend_on_their_seed_alone(factory):
    before = torch.get_rng_state()
    first = factory(seed=1).state_dict()
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(3)
    second, other = factory(seed=1).state_dict(), factory(seed=2).state_dict()
    assert all(torch.equal(first[key], second[key]) for key in first)
    stem = next(iter(first))
    assert not torch.equal(first[stem], other[stem])
