"""Equalization and absorption on single pairs and triples, against what the formulas say."""

import copy

import pytest
import torch
from tensors import images, ranges
from torch import nn

from flexround.errors import InputError
from flexround.models.groups import EqualizationGroup
from flexround.models.surgery.equalize import absorb_high_biases, equalize
from flexround.models.surgery.fold_bn import FoldedStatistics


def pair(activation: bool) -> tuple[nn.Sequential, EqualizationGroup, dict[str, FoldedStatistics]]:
    """Return two 1x1 convolutions without padding, their group, and statistics made up for the first."""
    generator = torch.Generator().manual_seed(3)
    middle = [nn.ReLU()] if activation else []
    model = nn.Sequential(nn.Conv2d(3, 4, 1), *middle, nn.Conv2d(4, 5, 1)).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(generator=generator)
    statistics = {
        "0": FoldedStatistics(
            gamma=torch.tensor([0.5, -0.5, 1.0, 0.1], dtype=torch.float64),
            beta=torch.tensor([2.0, 2.0, 1.0, -3.0], dtype=torch.float64),
        )
    }
    return model, EqualizationGroup(("0", str(len(model) - 1)), activation), statistics


def test_a_pair_gets_the_square_root_of_the_range_ratio():
    model, group, statistics = pair(activation=True)
    first, second = copy.deepcopy(model[0]), copy.deepcopy(model[2])
    scale = (first.weight.abs().amax((1, 2, 3)) / second.weight.abs().amax((0, 2, 3))).sqrt()
    old = statistics["0"]
    equalize(model, [group], statistics)
    torch.testing.assert_close(model[0].weight, first.weight / scale.view(-1, 1, 1, 1))
    torch.testing.assert_close(model[0].bias, first.bias / scale)
    torch.testing.assert_close(model[2].weight, second.weight * scale.view(1, -1, 1, 1))
    torch.testing.assert_close(model[2].bias, second.bias)
    torch.testing.assert_close(statistics["0"].gamma, old.gamma / scale)
    torch.testing.assert_close(statistics["0"].beta, old.beta / scale)


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


def test_grouped_convolutions_are_refused():
    model = nn.Sequential(nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1, groups=2))
    with pytest.raises(InputError, match=r"1: Conv2d\(.*groups=2\) can't be equalized"):
        equalize(model, [EqualizationGroup(("0", "1"), activation=False)], {})


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
    plain = copy.deepcopy(model)
    beta = statistics["0"].beta
    absorb_high_biases(model, [group], statistics)
    torch.testing.assert_close(plain[0].bias - model[0].bias, beta)
    assert torch.equal(statistics["0"].beta, torch.zeros(4, dtype=torch.float64))
    x = images(2, 8).double()
    torch.testing.assert_close(model(x), plain(x))


@torch.no_grad()
def test_absorption_into_a_depthwise_convolution():
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU(), nn.Conv2d(4, 4, 3, groups=4))
    model[0].bias.fill_(50.0)
    plain = copy.deepcopy(model)
    statistics = {"0": FoldedStatistics(torch.ones(4), torch.full((4,), 13.0))}
    absorb_high_biases(model, [EqualizationGroup(("0", "2"), activation=True)], statistics)
    assert torch.equal(model[0].bias, torch.full((4,), 40.0))
    x = images(2, 8)
    torch.testing.assert_close(model(x), plain(x))


def test_absorption_needs_a_folded_batch_norm():
    model, group, _ = pair(activation=True)
    with pytest.raises(InputError, match="0: absorbing its bias needs folded batch norms"):
        absorb_high_biases(model, [group], {})
