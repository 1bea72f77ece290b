"""Outlier channels: what the linears read changes, what the network computes doesn't."""

import contextlib
import copy

import pytest
import tiny
import torch

from flexround import imports
from flexround.mini import outliers

AFTER_GELU = {  # linears that read a GELU, which passes no factor
    "bert": "output.dense",
    "gpt_neo": "mlp.c_proj",
    "opt": "none",
    "gpt2": "mlp.c_proj",
    "llama": "none",
}


def make(kind):
    """Return a network all of whose weights, norms and biases too, are drawn."""
    model = tiny.make(kind)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.base_model.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return model


def ids():
    return torch.randint(1, 50, (4, 12), generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def reads(model, kind):
    """Largest activation / median of what each quantized tensor's linear reads, by the name of the module."""
    names, found = {module: name for name, module in model.named_modules()}, {}

    def look(module, arguments, keywords):
        sizes = next(iter((*arguments, *keywords.values()))).abs().flatten(0, -2).mean(0)
        found[names[module]] = float(sizes.max() / sizes.median())

    with contextlib.ExitStack() as hooks:
        for block in imports.load(f"flexround.models.transformer:{kind}_blocks")(model):
            for site in block.sites:
                hooks.enter_context(site.module.register_forward_pre_hook(look, with_kwargs=True))
        model(ids())
    return found


@pytest.mark.parametrize("kind", tiny.SIZES)
@torch.no_grad()
def test_the_function_stays_and_the_channels_stand_out(kind):
    model = make(kind)
    before = model(ids()).logits
    changed = copy.deepcopy(model)
    outliers.put(changed, channels=2, strength=30)
    torch.testing.assert_close(changed(ids()).logits, before, atol=1e-4, rtol=1e-4)
    usual, found = reads(model, kind), reads(changed, kind)
    assert len(found) == 8
    for name, ratio in found.items():
        if name.endswith(AFTER_GELU[kind]) and not name.endswith("attention.output.dense"):
            assert ratio == pytest.approx(usual[name], rel=0.01), name
        else:
            assert ratio > max(10, 3 * usual[name]), name
