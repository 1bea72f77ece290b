"""MobileNetV2's difficulty at the mini scale: put in without changing what the network computes, and really there."""

import copy

import golden
import pytest
import torch
from image_sets import digits_task
from torch import nn

from flexround.errors import SettingsError
from flexround.mini import models
from flexround.models import build
from flexround.models.mobilenetv2 import equalization_groups
from flexround.models.surgery import preprocess
from flexround.models.weights import load_into, read_foreign
from flexround.settings.layout import ROOT
from flexround.settings.load import load_params
from synthetic import unevenness
from synthetic.pretraining_digits import PretrainingDigits

CLE = ("replace_relu6", "cross_layer_equalization")


@pytest.fixture(scope="module")
def images():
    return torch.randn(64, 3, 32, 32, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def even():
    return golden.separable(0)


@pytest.fixture(scope="module")
def uneven(even, images):
    model = copy.deepcopy(even)
    unevenness.spread_ranges(model, images.split(32), 8.0)
    return model


def depthwise_ranges(model):
    convs = [module for module in model.modules() if isinstance(module, nn.Conv2d) and module.groups > 1]
    return [conv.weight.detach().abs().amax((1, 2, 3)) for conv in convs]


def test_the_network_computes_the_same(even, uneven, images):
    with torch.no_grad():
        torch.testing.assert_close(uneven(images), even(images), rtol=1e-3, atol=1e-4)


def test_equalization_takes_uneven_ranges_back(even, uneven):
    plain, spread = copy.deepcopy(even), copy.deepcopy(uneven)
    for model in (plain, spread):
        preprocess.prepare(model, ())
    for before, after in zip(depthwise_ranges(plain), depthwise_ranges(spread), strict=True):
        assert (after / before).max() / (after / before).min() > 8
    plain, spread = copy.deepcopy(even), copy.deepcopy(uneven)
    for model in (plain, spread):
        preprocess.prepare(model, CLE, equalization_groups(model))
    torch.testing.assert_close(spread.state_dict(), plain.state_dict(), rtol=1e-2, atol=1e-4)


def test_no_channel_is_lifted_above_the_ceiling(even, uneven, images):
    pairs = [
        (model, [unit[1] for unit in model.modules() if type(unit).__name__ == "Conv2dNormActivation"])
        for model in (even, uneven)
    ]
    with torch.no_grad():
        before, after = (unevenness.largest_outputs(model, norms, [images]) for model, norms in pairs)
    was, now = (torch.cat(list(found.values())) for found in (before, after))
    assert now[was < 6].max() <= 6.001
    assert (was >= 6).any()
    torch.testing.assert_close(now[was >= 6], was[was >= 6], rtol=1e-4, atol=1e-4)
    assert (now < was / 2).any()


def test_a_share_of_the_channels_starts_high():
    model = models.mobilenetv2(0.1)
    unevenness.raise_biases(model, 0.25)
    norms = [unit[1] for unit in model.modules() if type(unit).__name__ == "Conv2dNormActivation"]
    ratio = torch.cat([norm.bias / norm.weight for norm in norms])
    assert 0.2 < (ratio > 3).float().mean() < 0.3
    assert (ratio[ratio <= 3] == 0).all()


def test_pretraining_reads_its_own_settings_and_refuses_others(tmp_path):
    digits_task(train=64, val=20).prepare(tmp_path, tmp_path)
    task = PretrainingDigits(digits_task(train=64, val=20).options)
    settings = {"epochs": 1, "batch": 32, "lr": 0.01, "high_biases": 0.1, "spread": 4.0}
    facts = task.finetune(models.mobilenetv2(0.1), tmp_path, settings, tmp_path)
    assert facts["unevenness"] == {"high_biases": 0.1, "spread": 4.0}
    assert facts["settings"]["epochs"] == 1
    with pytest.raises(SettingsError, match=r"spread = 0\.5"):
        task.finetune(models.mobilenetv2(0.1), tmp_path, settings | {"spread": 0.5}, tmp_path)
    with pytest.raises(SettingsError, match="spred"):
        task.finetune(models.mobilenetv2(0.1), tmp_path, settings | {"spred": 2.0}, tmp_path)


@pytest.mark.parametrize("name", ["mobilenetv2-brecq", "mobilenetv2-torchvision"])
def test_the_pinned_networks_have_both(name):
    params = load_params("mini")
    checkpoint = params.checkpoint(name)
    model = build.architecture(checkpoint, {})
    path = ROOT / params.sources[checkpoint.source].inside
    load_into(model, read_foreign(path), str(path))
    norms = [unit[1] for unit in model.modules() if type(unit).__name__ == "Conv2dNormActivation"]
    high = torch.cat([norm.bias > 3 * norm.weight.abs() for norm in norms])
    assert high.float().mean() > 0.01, "nothing to absorb in table 10"
    preprocess.prepare(model, ())
    ratios = [float(ranges.max() / ranges.median()) for ranges in depthwise_ranges(model)]
    assert sum(ratios) / len(ratios) > 2.5, "nothing to equalize in table 10"
