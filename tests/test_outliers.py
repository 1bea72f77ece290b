"""Outlier channels: what the linears read changes, what the network computes doesn't."""

import contextlib
import copy
from types import SimpleNamespace

import pytest
import tiny
import torch
from safetensors.torch import load_file

from flexround import imports
from flexround.errors import SettingsError
from flexround.io.artifacts import read_manifest
from flexround.mini import outliers
from flexround.settings.schema import Finish
from flexround.stages import finetune

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


def test_impossible_ones_are_refused():
    with pytest.raises(SettingsError, match="channels=17 is more than the 16"):
        outliers.put(make("llama"), channels=17, strength=2)
    model = make("llama")
    model.config.model_type = "mamba"
    with pytest.raises(SettingsError, match="mamba"):
        outliers.put(model, channels=2, strength=2)


def test_a_network_gets_them_when_it_is_ready(tmp_path):
    done = Finish(function="flexround.mini.outliers:put", args={"channels": 2, "strength": 30})
    job = SimpleNamespace(checkpoint=SimpleNamespace(finish=done, streamed=False), names=("mini",), out=tmp_path)
    model = make("llama")
    before = model.model.layers[0].input_layernorm.weight.detach().clone()
    finetune.finish(job, model, {})
    stored = load_file(tmp_path / "model.safetensors")["model.layers.0.input_layernorm.weight"]
    torch.testing.assert_close(stored / before, torch.tensor([30.0 if i in (0, 8) else 1.0 for i in range(16)]))
    assert read_manifest(tmp_path)["finish"] == done.model_dump()
