"""The contract of the vision adapters and of the mini factories."""

import collections

import pytest
import torch
from torch import nn

from flexround.mini import models as mini
from flexround.models import mobilenetv2, resnet
from flexround.models.blocks import run
from flexround.models.groups import EqualizationGroup

# name: factory, adapter, image size, blocks, sites (inside the blocks and on their outputs)
MODELS = {
    "resnet18": (resnet.resnet18, resnet.blocks, 64, 10, 1 + 8 * 2),
    "resnet50": (resnet.resnet50, resnet.blocks, 64, 18, 1 + 16 * 3),
    "mobilenet_v2": (mobilenetv2.mobilenet_v2, mobilenetv2.blocks, 64, 20, 1 + 2 + 16 * 3 + 1),
    "mini resnet18": (mini.resnet18, resnet.blocks, 32, 10, 1 + 8 * 2),
    "mini resnet50": (mini.resnet50, resnet.blocks, 32, 18, 1 + 16 * 3),
    "mini mobilenetv2": (mini.mobilenetv2, mobilenetv2.blocks, 32, 20, 1 + 2 + 16 * 3 + 1),
}


@pytest.fixture(scope="module", params=MODELS)
def case(request):
    """A model in evaluation mode, its blocks, an image batch, and the expected numbers of blocks and sites."""
    factory, blocks, size, n_blocks, n_sites = MODELS[request.param]
    model = factory().eval()
    x = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(0))
    fit_batch_norms(model, x)
    return model, blocks(model), x, n_blocks, n_sites


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
def test_blocks_equal_the_model(case):
    model, blocks, x, _, _ = case
    y = model(x)
    assert torch.equal(run(blocks, x), y)
    assert (y[0] - y[1]).norm() > 0.1 * y.norm()


@torch.no_grad()
def test_no_block_changes_its_input(case):
    _, blocks, x, _, _ = case
    for block in blocks:
        x = block.before(x)
        kept = x.clone()
        y = block.module(x)
        assert torch.equal(x, kept), block.name
        x = y


def test_blocks_hold_every_parameter_once(case):
    model, blocks, _, n_blocks, _ = case
    assert len(blocks) == len({block.name for block in blocks}) == n_blocks
    held = [id(parameter) for block in blocks for parameter in block.module.parameters()]
    assert held == [id(parameter) for parameter in model.parameters()]


def test_first_and_last_linear_stand_alone(case):
    model, blocks, _, _, _ = case
    linears = [module for module in model.modules() if isinstance(module, nn.Conv2d | nn.Linear)]
    for block, linear in ((blocks[0], linears[0]), (blocks[-1], linears[-1])):
        assert [module for module in block.module.modules() if isinstance(module, nn.Conv2d | nn.Linear)] == [linear]


def test_glue_has_no_parameters(case):
    _, blocks, _, _, _ = case
    assert not any(list(block.before.parameters()) for block in blocks if isinstance(block.before, nn.Module))


@torch.no_grad()
def test_sites_are_called_once_each(case):
    model, blocks, x, _, n_sites = case
    sites = [site for block in blocks for site in block.sites]
    assert len(sites) == len({(id(site.module), site.where) for site in sites}) == n_sites
    assert not blocks[-1].sites
    # A quantizer becomes a child of its site's module, and a Sequential would run it as one more layer.
    assert not any(isinstance(site.module, nn.Sequential) for site in sites)
    calls = collections.Counter()
    handles = [
        site.module.register_forward_pre_hook(lambda module, _, key=i: calls.update([key]))
        for i, site in enumerate(sites)
    ]
    model(x)
    for handle in handles:
        handle.remove()
    assert calls == dict.fromkeys(range(n_sites), 1)


@torch.no_grad()
def test_last_site_of_a_block_is_its_output(case):
    _, blocks, x, _, _ = case
    for block in blocks[:-1]:
        seen = []
        handle = block.sites[-1].module.register_forward_hook(lambda _m, _x, y, seen=seen: seen.append(y))
        assert block.sites[-1].where == "output"
        x = block.module(block.before(x))
        handle.remove()
        assert seen[0] is x, block.name


@torch.no_grad()
def test_sites_inside_a_block_follow_an_activation(case):
    _, blocks, x, _, _ = case
    for block in blocks:
        seen = []
        handles = [
            site.module.register_forward_pre_hook(lambda _m, x, seen=seen: seen.append(x[0].clone()))
            if site.where == "input"
            else site.module.register_forward_hook(lambda _m, _x, y, seen=seen: seen.append(y.clone()))
            for site in block.sites[:-1]
        ]
        x = block.before(x)
        y = block.module(x)
        for handle in handles:
            handle.remove()
        assert len(seen) == max(0, len(block.sites) - 1)
        assert all(tensor.min() == 0 for tensor in seen), block.name
        assert not any(torch.equal(tensor, end) for tensor in seen for end in (x, y)), block.name
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


MINI = {"resnet18": (mini.resnet18, 3.37), "resnet50": (mini.resnet50, 6.27), "mobilenetv2": (mini.mobilenetv2, 5.15)}


def multiply_adds(model: nn.Module, x: torch.Tensor) -> tuple[float, list[tuple[int, ...]]]:
    """Return the millions of multiply-adds of one forward pass and the output shape of each convolution."""
    total, shapes = 0, []

    def count(module, _, y):
        nonlocal total
        total += module.weight.numel() * (y[0, 0].numel() if y.ndim == 4 else 1)
        shapes.append(tuple(y.shape[1:]))

    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            module.register_forward_hook(count)
    model.eval()(x)
    return total / 1e6, shapes


@pytest.mark.parametrize("name", MINI)
def test_mini_models_cost_what_they_say(name):
    factory, expected = MINI[name]
    cost, shapes = multiply_adds(factory(), torch.zeros(1, 3, 32, 32))
    assert cost == pytest.approx(expected, abs=0.01)
    assert all(shape[0] % 8 == 0 for shape in shapes[:-1])
    assert shapes[-2][1:] == (2, 2)
    assert shapes[-1] == (10,)


@pytest.mark.parametrize("name", MINI)
def test_mini_models_depend_on_their_seed_alone(name):
    factory, _ = MINI[name]
    before = torch.get_rng_state()
    first = factory(seed=1).state_dict()
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(3)
    second, other = factory(seed=1).state_dict(), factory(seed=2).state_dict()
    assert all(torch.equal(first[key], second[key]) for key in first)
    stem = next(iter(first))
    assert not torch.equal(first[stem], other[stem])


def test_mini_resnets_are_torchvision_resnets():
    model = mini.resnet18(width=64, num_classes=1000)
    reference = resnet.resnet18()
    assert isinstance(model, type(reference))
    assert type(model).forward is type(reference).forward
    shapes = {key: value.shape for key, value in model.state_dict().items()}
    assert shapes == {key: value.shape for key, value in reference.state_dict().items()}
