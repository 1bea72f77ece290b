"""Folding, equalization and absorption change the weights and not the function."""

import copy

import pytest
import torch
from tensors import images, ranges
from torch import nn

from flexround.errors import InputError, SettingsError
from flexround.mini import models as mini
from flexround.models import mobilenetv2, resnet
from flexround.models.groups import EqualizationGroup
from flexround.models.surgery.equalize import absorb_high_biases, equalize
from flexround.models.surgery.fold_bn import FoldedStatistics, fold_batch_norm
from flexround.models.surgery.preprocess import prepare
from flexround.models.surgery.relu6 import replace_relu6, restore_relu6

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


@pytest.mark.parametrize("factory", [resnet.resnet18, resnet.resnet50, mobilenetv2.mobilenet_v2])
@torch.no_grad()
def test_folding_keeps_the_output(factory):
    model = randomised(factory(), size=64)
    x = images(2, 64)
    expected = model(x)
    assert relative(expected[0], expected[1]) > 0.03
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    gammas, betas = [norm.weight.clone() for norm in norms], [norm.bias.clone() for norm in norms]
    statistics = fold_batch_norm(model)
    assert relative(model(x), expected) < 1e-5
    assert not any(isinstance(module, nn.BatchNorm2d) for module in model.modules())
    convs = {name: module for name, module in model.named_modules() if isinstance(module, nn.Conv2d)}
    assert statistics.keys() == convs.keys()
    assert all(conv.bias is not None for conv in convs.values())
    # Convolutions and their norms are registered in the same order.
    for name, gamma, beta in zip(convs, gammas, betas, strict=True):
        assert torch.equal(statistics[name].gamma, gamma)
        assert torch.equal(statistics[name].beta, beta)


@torch.no_grad()
def test_folding_keeps_a_convolution_bias():
    model = randomised(nn.Sequential(nn.Conv2d(3, 5, 3, bias=True), nn.BatchNorm2d(5)))
    model[0].bias += 1.0
    x = images(2, 8)
    expected = model(x)
    fold_batch_norm(model)
    torch.testing.assert_close(model(x), expected)


@pytest.mark.parametrize(
    "layers",
    [
        [nn.Conv2d(3, 4, 1), nn.ReLU(), nn.BatchNorm2d(4)],
        [nn.BatchNorm2d(3), nn.Conv2d(3, 4, 1)],
        [nn.Conv2d(3, 4, 1), nn.BatchNorm2d(8)],
    ],
)
def test_a_batch_norm_without_convolution_is_refused_whole(layers):
    body = nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3))
    model = nn.ModuleDict({"body": body, "tail": nn.Sequential(*layers)}).eval()
    with pytest.raises(InputError, match=r"tail\.\d: no convolution with \d output channels"):
        fold_batch_norm(model)
    assert isinstance(body[1], nn.BatchNorm2d)


def test_a_batch_norm_without_statistics_is_refused():
    model = nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3, affine=False)).eval()
    with pytest.raises(InputError, match="1: has no weights or no running statistics"):
        fold_batch_norm(model)


def test_folding_in_training_mode_is_refused():
    with pytest.raises(ValueError, match="eval"):
        fold_batch_norm(mini.resnet18(8))


@torch.no_grad()
def test_relu6_is_replaced_and_restored():
    model = randomised(mini.mobilenetv2(0.25))
    x = 20 * images(4, 32)
    clipped = model(x)
    names = replace_relu6(model)
    assert len(names) == 35
    assert not any(isinstance(module, nn.ReLU6) for module in model.modules())
    assert all(type(model.get_submodule(name)) is nn.ReLU and model.get_submodule(name).inplace for name in names)
    assert relative(model(x), clipped) > 0.01
    seen = []
    model.features[0].register_forward_hook(lambda _m, _x, y: seen.append(y.max()))
    model(x)
    assert seen[0] > 6
    restore_relu6(model, names)
    assert torch.equal(model(x), clipped)
    assert seen[1] == 6


def test_restoring_leaves_other_relus_alone():
    model = nn.Sequential(nn.ReLU(), nn.ReLU6())
    restore_relu6(model, replace_relu6(model))
    assert [type(module) for module in model] == [nn.ReLU, nn.ReLU6]


def equalized(model: nn.Module) -> tuple[nn.Module, list[EqualizationGroup], dict[str, FoldedStatistics]]:
    """Return ``model`` folded, with ReLU and equalized, its groups, and the scaled statistics."""
    groups = mobilenetv2.equalization_groups(model)
    statistics = fold_batch_norm(model)
    replace_relu6(model)
    equalize(model, groups, statistics)
    return model, groups, statistics


@pytest.mark.parametrize("width", [0.25, 0.5])
@torch.no_grad()
def test_equalization_keeps_the_output_and_evens_the_ranges(width):
    plain = randomised(mini.mobilenetv2(width)).double()
    fold_batch_norm(plain)
    replace_relu6(plain)
    model, groups, _ = equalized(randomised(mini.mobilenetv2(width)).double())
    x = images(2, 32).double()
    assert relative(model(x), plain(x)) < 1e-10
    for group in groups:
        convs = [model.get_submodule(name) for name in group.convs]
        old = [ranges(plain.get_submodule(name), i == 0) for i, name in enumerate(group.convs)]
        new = [ranges(conv, i == 0) for i, conv in enumerate(convs)]
        assert (old[0] / old[-1]).log().abs().max() > 0.1
        for other in new[1:]:
            torch.testing.assert_close(other, new[0], rtol=1e-4, atol=0)


@torch.no_grad()
def test_prepare_absorbs_scaled_statistics():
    source = randomised(mini.mobilenetv2(0.25))
    groups = mobilenetv2.equalization_groups(source)
    expected, _, statistics = equalized(copy.deepcopy(source))
    absorb_high_biases(expected, groups, statistics)
    prepare(source, (*CLE, "absorb_high_biases"), groups)
    assert all(torch.equal(value, expected.state_dict()[name]) for name, value in source.state_dict().items())


@torch.no_grad()
def test_prepare_reproduces_the_relu6_trap():
    source = randomised(mini.mobilenetv2(0.25))
    x = images(4, 32)
    expected = source(x)
    groups = mobilenetv2.equalization_groups(source)
    folded, sound, trapped = (copy.deepcopy(source) for _ in range(3))
    prepare(folded, ())
    prepare(sound, CLE, groups)
    prepare(trapped, (*CLE, "restore_relu6"), groups)
    assert relative(folded(x), expected) < 1e-5
    assert any(isinstance(module, nn.ReLU6) for module in trapped.modules())
    assert all(torch.equal(value, sound.state_dict()[name]) for name, value in trapped.state_dict().items())
    assert relative(trapped(x), expected) > 3 * relative(sound(x), expected)


@pytest.mark.parametrize(
    ("steps", "groups", "message"),
    [
        (("cross_layer_equalisation",), [], "did you mean 'cross_layer_equalization'"),
        (("cross_layer_equalization",), [], "put replace_relu6 before it"),
        (("replace_relu6", "restore_relu6", "cross_layer_equalization"), [], "put replace_relu6 before it"),
        (("restore_relu6",), [], "does not come before it"),
        (CLE, None, "MobileNetV2 offers none"),
        (("absorb_high_biases",), None, "absorb_high_biases needs equalization groups"),
    ],
)
def test_prepare_refuses_before_it_changes_anything(steps, groups, message):
    model = mini.mobilenetv2(0.25).eval()
    with pytest.raises(SettingsError, match=message):
        prepare(model, steps, groups)
    assert any(isinstance(module, nn.BatchNorm2d) for module in model.modules())
    assert any(isinstance(module, nn.ReLU6) for module in model.modules())
