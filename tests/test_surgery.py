"""Folding, equalization and absorption: what they change in the weights, and that the function stays."""

import copy

import pytest
import torch
from tensors import images, ranges
from torch import nn

from flexround.mini import models as mini
from flexround.models import mobilenetv2
from flexround.models.blocks import EqualizationGroup
from flexround.models.surgery.fold_bn import FoldedStatistics, fold_batch_norm
from flexround.models.surgery.preprocess import absorb_high_biases, equalize, prepare, replace_relu6

CLE = ("replace_relu6", "cross_layer_equalization")


@torch.no_grad()
def randomised(model: nn.Module, size: int = 32) -> nn.Module:
    """Return ``model`` in evaluation mode with batch norms as after training: random weights, statistics that fit.

    With arbitrary statistics a deep network's output would hardly depend on its input, and no test could fail.
    """
    generator = torch.Generator().manual_seed(0)
    model.eval()
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    for norm in norms:
        norm.weight.uniform_(0.3, 1.5, generator=generator)
        norm.weight *= torch.randn(norm.num_features, generator=generator).sign()
        norm.bias.normal_(0.3, 0.5, generator=generator)
        norm.train().momentum = 1.0
    model(images(8, size))
    for norm in norms:
        norm.running_var *= 1.3
        norm.running_mean += 0.1 * norm.running_var.sqrt()
    return model.eval()


def relative(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).norm() / b.norm())


@pytest.mark.parametrize("factory", [mini.resnet18, mini.resnet50, mini.mobilenetv2])
@torch.no_grad()
def test_folding_keeps_the_output(factory):
    model = randomised(nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3), factory()))
    model[0].bias += 1.0  # a bias of its own is kept
    x = images(2, 32)
    expected = model(x)
    assert relative(expected[0], expected[1]) > 0.03
    norms = [copy.deepcopy(module) for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    statistics = fold_batch_norm(model)
    assert relative(model(x), expected) < 1e-5
    assert not any(isinstance(module, nn.BatchNorm2d) for module in model.modules())
    convs = [name for name, module in model.named_modules() if isinstance(module, nn.Conv2d)]
    assert statistics.keys() == set(convs)
    # Convolutions and their norms are registered in the same order.
    for name, norm in zip(convs, norms, strict=True):
        assert torch.equal(statistics[name].gamma, norm.weight)
        assert torch.equal(statistics[name].beta, norm.bias)


def equalized(model: nn.Module) -> tuple[nn.Module, list[EqualizationGroup], dict[str, FoldedStatistics]]:
    """Return ``model`` folded, with ReLU and equalized, its groups, and the scaled statistics."""
    groups = mobilenetv2.equalization_groups(model)
    statistics = fold_batch_norm(model)
    replace_relu6(model)
    equalize(model, groups, statistics)
    return model, groups, statistics


@torch.no_grad()
def test_equalization_keeps_the_output_and_evens_the_ranges():
    plain = randomised(mini.mobilenetv2(0.25)).double()
    before = fold_batch_norm(plain)
    replace_relu6(plain)
    model, groups, statistics = equalized(randomised(mini.mobilenetv2(0.25)).double())
    x = images(2, 32).double()
    assert relative(model(x), plain(x)) < 1e-10
    for group in groups:
        old, new = (
            [ranges(of.get_submodule(name), i == 0) for i, name in enumerate(group.convs)] for of in (plain, model)
        )
        assert (old[0] / old[-1]).log().abs().max() > 0.1
        for other in new[1:]:
            torch.testing.assert_close(other, new[0], rtol=1e-4, atol=0)
    for name, old in before.items():
        scale = model.get_submodule(name).bias / plain.get_submodule(name).bias
        torch.testing.assert_close(statistics[name].gamma, old.gamma * scale)
        torch.testing.assert_close(statistics[name].beta, old.beta * scale)


# single pairs and triples, against what the formulas say


def pair(activation: bool) -> tuple[nn.Sequential, EqualizationGroup, dict[str, FoldedStatistics]]:
    """Return two 1x1 convolutions without padding, their group, and statistics made up for the first."""
    generator = torch.Generator().manual_seed(3)
    middle = [nn.ReLU()] if activation else []
    model = nn.Sequential(nn.Conv2d(3, 4, 1), *middle, nn.Conv2d(4, 5, 1)).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(generator=generator)
    gamma, beta = torch.tensor([[0.5, -0.5, 1.0, 0.1], [2.0, 2.0, 1.0, -3.0]], dtype=torch.float64)
    return model, EqualizationGroup(("0", str(len(model) - 1)), activation), {"0": FoldedStatistics(gamma, beta)}


@pytest.mark.parametrize("dead", [0, 1, 2])
@torch.no_grad()
def test_dead_channels_are_left_alone(dead):
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU(), nn.Conv2d(4, 4, 3, groups=4), nn.ReLU(), nn.Conv2d(4, 5, 1))
    convs = model[0], model[2], model[4]
    (convs[dead].weight[:, 2] if dead == 2 else convs[dead].weight[2]).zero_()
    kept = [convs[0].weight[2].clone(), convs[1].weight[2].clone(), convs[2].weight[:, 2].clone()]
    x = images(2, 8)
    expected = model(x)
    equalize(model, [EqualizationGroup(("0", "2", "4"), activation=True)], {})
    torch.testing.assert_close(model(x), expected)
    torch.testing.assert_close([convs[0].weight[2], convs[1].weight[2], convs[2].weight[:, 2]], kept, rtol=0, atol=0)
    alive = [0, 1, 3]
    torch.testing.assert_close(ranges(convs[0], True)[alive], ranges(convs[2], False)[alive], rtol=1e-5, atol=0)


@torch.no_grad()
def test_absorption_is_exact_above_the_surplus():
    model, group, statistics = pair(activation=True)
    plain = copy.deepcopy(model)
    absorb_high_biases(model, [group], statistics)
    surplus = torch.tensor([0.5, 0.5, 0.0, 0.0], dtype=torch.float64)  # max(0, beta - 3|gamma|)
    torch.testing.assert_close(plain[0].bias - model[0].bias, surplus)
    torch.testing.assert_close(statistics["0"].beta, torch.tensor([1.5, 1.5, 1.0, -3.0], dtype=torch.float64))
    x = 3 * images(8, 16).double()
    exact = (plain[0](x) >= surplus.view(1, -1, 1, 1)).logical_or(surplus.view(1, -1, 1, 1) == 0).all(1, keepdim=True)
    difference = (model(x) - plain(x)).abs().amax(1, keepdim=True)
    assert 0.02 < exact.double().mean() < 0.98
    assert difference[exact].max() < 1e-12
    assert difference[~exact].min() > 1e-12


@torch.no_grad()
def test_absorption_without_activation_takes_all_of_beta():
    model, group, statistics = pair(activation=False)
    plain, beta = copy.deepcopy(model), statistics["0"].beta
    absorb_high_biases(model, [group], statistics)
    torch.testing.assert_close(plain[0].bias - model[0].bias, beta)
    assert torch.equal(statistics["0"].beta, torch.zeros(4, dtype=torch.float64))
    x = images(2, 8)
    torch.testing.assert_close(model(x.double()), plain(x.double()))


# the steps of a recipe


@torch.no_grad()
def test_prepare_does_the_steps_in_order():
    source = randomised(mini.mobilenetv2(0.25))
    x, groups = images(4, 32), mobilenetv2.equalization_groups(source)
    expected, _, statistics = equalized(copy.deepcopy(source))
    folded, sound, trapped = (copy.deepcopy(source) for _ in range(3))
    prepare(folded, ())
    prepare(sound, CLE, groups)
    prepare(trapped, (*CLE, "restore_relu6"), groups)
    clipped = [name for name, module in source.named_modules() if isinstance(module, nn.ReLU6)]
    assert len(clipped) == 35
    assert clipped == [name for name, module in trapped.named_modules() if isinstance(module, nn.ReLU6)]
    assert all(type(sound.get_submodule(name)) is nn.ReLU for name in clipped)
    full = source(x)
    assert relative(folded(x), full) < 1e-5
    assert torch.equal(sound(x), expected(x))
    assert all(torch.equal(value, sound.state_dict()[name]) for name, value in trapped.state_dict().items())
    assert relative(trapped(x), full) > 3 * relative(sound(x), full)
    absorb_high_biases(expected, groups, statistics)
    prepare(source, (*CLE, "absorb_high_biases"), groups)
    assert all(torch.equal(value, expected.state_dict()[name]) for name, value in source.state_dict().items())
