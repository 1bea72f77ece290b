"""FlexRound from Python, as its users call it: known networks, networks of one's own, saved, loaded, resumed."""

import ast
import dataclasses
import functools
import importlib
import re
import subprocess
import sys
import textwrap
import warnings

import pytest
import torch
import torchvision
import toy
from own_networks import FEW, Across, Pictures, Twice, Words, llama, made, pictures, words
from torch import nn

import flexround
from flexround.library import auto_blocks
from flexround.library.quantize import fingerprint as of_work
from flexround.mini import models as mini
from flexround.quant.flexround import FlexRound
from flexround.reconstruct.state import MemoryState, State
from flexround.settings.layout import ROOT

PARTS = ["stem", "stage", "down", "head"]


@pytest.mark.parametrize(
    ("kind", "x", "names"),
    [
        (Pictures, pictures(), ["stem", "stage.0", "stage.1", "down.0", "down.2", "head.0", "head.2"]),
        (Words, torch.stack([words(), words() * 0], 1), ["core.layers.0", "core.layers.1", "core.layers.2"]),
        (Across, torch.randn(8, 4), ["network"]),
        (Twice, torch.randn(8, 4), ["network"]),
    ],
)
def test_the_cut_is_as_fine_as_the_network_allows(kind, x, names):
    model = made(kind)
    assert [block.name for block in auto_blocks.automatic(model, x)] == names
    assert not any("forward" in module.__dict__ for module in model.modules()), "nothing stays replaced"
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_blocks_by_name_and_by_function():
    model, x = made(Pictures), pictures()
    coarse = flexround.quantize(model, x, "b-rtn-w4", blocks=PARTS, **FEW)
    assert [record["block"] for record in coarse.report] == PARTS

    def blocks(network):
        return auto_blocks.named(network, PARTS, x)

    assert torch.equal(flexround.quantize(model, x, "b-rtn-w4", blocks=blocks, **FEW)(x), coarse(x))
    some = flexround.quantize(model, x, "b-rtn-w4", blocks=["stage", "head"], **FEW)
    assert sorted(some.codes()) == sorted(name for name in coarse.codes() if name.startswith(("stage", "head")))


def test_named_layers_of_a_language_model_get_no_cache_of_keys():
    model, ids, names = llama(use_cache=True), words(), ["model.layers.0", "model.layers.1"]
    found = flexround.quantize(model, ids, "q-flexround-w8a8", blocks=names, **FEW)
    assert [record["block"] for record in found.report] == names
    assert found.model.config.use_cache
    whole = flexround.quantize(model, ids, "q-flexround-w8a8", **FEW)(ids).logits
    assert (found(ids).logits - whole).norm() < 0.1 * whole.norm()


@pytest.mark.parametrize("build", [mini.resnet18, mini.mobilenetv2])
def test_torchvision_networks_are_known(tmp_path, build):
    model, x = build(seed=1).eval(), torch.randn(8, 3, 32, 32)
    quantized = flexround.quantize(model, x, "q-flexround-w4a4", **FEW | {"iters": 1})
    assert torch.equal(flexround.load(quantized.save(tmp_path), build())(x), quantized(x))
    assert {stored.grid.qmax for stored in quantized.codes().values()} == {7, 127}, "first and last layer have 8 bits"
    assert "output" in {where for _, where in quantized.sites}, "as BRECQ cuts them, not as any network is cut"


class Normalises(torchvision.models.ResNet):
    def forward(self, x):
        return super().forward((x - 100) / 50)


def test_a_subclass_unlike_its_parent_is_cut_by_itself(caplog):
    caplog.set_level("INFO")
    model = Normalises(torchvision.models.resnet.BasicBlock, [1, 1, 1, 1], num_classes=4)
    model.layer4, model.fc = nn.Identity(), nn.Linear(256, 4)
    found = flexround.quantize(model.eval(), pictures(4) * 50 + 100, "b-rtn-w4", **FEW)
    assert [record["block"] for record in found.report] == ["conv1", "layer1.0", "layer2.0", "layer3.0", "fc"]
    assert "Normalises: is not cut as its architecture is" in caplog.text


def test_a_llama_takes_the_settings_of_the_suite():
    ids = words()
    mapping = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    quantized = flexround.quantize(llama(), mapping, "q-flexround-w8a8", **FEW)
    assert quantized.hyper.w_granularity == "channel"
    assert quantized.sources["iters"] == "given"
    assert [record["block"] for record in quantized.report] == ["layers.0", "layers.1"]
    assert quantized.codes()["model.layers.0.mlp.up_proj"].codes.dtype == torch.uint8
    assert len(quantized.sites) == 2 * 4, "query, key and value share one, gate and up another"


def test_few_iterations_take_the_rates_of_the_scale_short():
    own = flexround.quantize(llama(), words(), "b-adaround-w4", scale="short", iters=1, progress=False)
    assert (own.hyper.lr, own.hyper.reg_weight) == (5e-2, 50), "a language model's"
    assert own.sources["lr"].startswith("short")


def test_learning_helps_and_seeds_decide_the_bits():
    model, x = made(Pictures), pictures(32)
    learned = flexround.quantize(model, x, "b-flexround-w3", iters=40, lr=1e-2, progress=False).report
    assert sum(record["error_hard"] for record in learned) < 0.85 * sum(record["error_rtn"] for record in learned)
    few = FEW | {"iters": 10, "lr": 2e-2}
    first, again, other = (flexround.quantize(model, x, "b-flexround-w3", seed=seed, **few) for seed in (0, 0, 1))
    assert torch.equal(again(x), first(x))
    assert not torch.equal(other(x), first(x))


def test_own_rounding_own_recipe_and_inplace():
    class Down(FlexRound):
        def codes(self, weight):
            return torch.clamp(torch.floor(weight / self.grid.step), self.low, self.high)

    model, own = made(Pictures), flexround.Recipe(setting="B", rounding="flexround", w_bits=3)
    weight, steps = model.head[0].weight.detach().clone(), FEW | {"inplace": True}
    down = flexround.quantize(model, pictures(), own, rounding=Down, **steps)
    stored = down.codes()["head.0"]
    assert torch.equal(stored.codes, torch.clamp(torch.floor(weight / stored.initial_step), -4, 3).to(torch.int8))
    assert down.model is model
    assert "Down W3, 10 layers" in repr(down), "the rounding that was used"


# state, files and memory


def test_an_interrupted_call_goes_on(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model, x = made(Pictures), pictures()
    whole = flexround.quantize(model, x, "b-flexround-w4", **FEW)
    assert not list(tmp_path.iterdir()), "nothing is written unless asked"
    stopped, original = [], State.commit

    def limited(self, *arguments):
        original(self, *arguments)
        stopped.append(arguments[0])
        if len(stopped) == 4:
            raise KeyboardInterrupt

    monkeypatch.setattr(State, "commit", limited)
    with pytest.raises(KeyboardInterrupt):
        flexround.quantize(model, x, "b-flexround-w4", state=tmp_path, **FEW)
    assert list(tmp_path.rglob("*.safetensors"))
    resumed = flexround.quantize(model, x, "b-flexround-w4", state=tmp_path, **FEW)
    assert stopped.count("weights/001") == 1
    assert torch.equal(resumed(x), whole(x))
    assert not list(tmp_path.rglob("*.*")), "nothing is left"


ROUNDING = """
from flexround.quant.rounding import Rounding
from flexround.reconstruct import cache

def away(weight):
    return weight.abs().floor()

class Own(Rounding):
    # a remark
    def forward(self, weight):
        return away(weight)
"""


def fingerprint(rounding):
    return of_work(dataclasses.replace(toy.job(toy.recipe()), rounding=rounding), "inputs")


@pytest.mark.parametrize(
    ("edit", "same"),
    [(("floor", "ceil"), False), (("away(weight)\n", "-away(weight)\n"), False), (("a remark", "x"), True)],
)
def test_unfinished_work_is_known_by_the_code_of_a_rounding(edit, same, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    path, digests = tmp_path / "own_of_test.py", []
    for text in (ROUNDING, ROUNDING.replace(*edit)):
        path.write_text(text)
        sys.modules.pop("own_of_test", None)
        importlib.invalidate_caches()
        own = importlib.import_module("own_of_test").Own
        typed = type("Typed", (own,), {"__module__": "__main__"})  # in a script; only its base class has changed
        digests.append([fingerprint(kind) for kind in (own, typed)])
    assert [before == after for before, after in zip(*digests, strict=True)] == [same, same]


def test_learned_matrices_are_multiplied_in_float32():
    model, x = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16)), torch.randn(64, 16)
    few = {"iters": 40, "lr": 1e-2, "precision": "bfloat16", "stem_bits": "low", "progress": False}
    for record in flexround.quantize(model, x, "b-lrq-w4", **few).report:
        assert record["error_soft"] == pytest.approx(record["error_hard"], rel=0.03)
        assert record["error_soft"] != record["error_rtn"]


def test_work_of_another_network_is_not_resumed(tmp_path, monkeypatch):
    found = []
    state = "flexround.library.quantize.State"
    monkeypatch.setattr(state, lambda _, fingerprint: found.append(fingerprint) or MemoryState())

    def after(function):
        class Network(nn.Sequential):
            def forward(self, x):
                return function(super().forward(x))

        return lambda *parts: Network(*parts, nn.Flatten())

    layers, x = [nn.Linear(4, 4), nn.Linear(4, 4)], torch.randn(8, 4)
    for kind, function in [(nn.ReLU, abs), (nn.ReLU, abs), (nn.Tanh, abs), (nn.ReLU, torch.exp)]:
        model = after(function)(layers[0], kind(), layers[1])
        flexround.quantize(model, x, "b-rtn-w4", state=tmp_path, progress=False)
    assert [found.index(each) for each in found] == [0, 0, 2, 3]


# what counts and what doesn't


@pytest.mark.parametrize("blocks", [None, PARTS])
def test_bits_of_first_and_last_layer_land_on_these(blocks):
    weights, activations = {"stem": 8, "head.2": 8}, {"head.2": 8, "stage.0.conv1": 8}
    few = FEW | {"iters": 1, "a_iters": 1}
    found = flexround.quantize(made(Pictures), pictures(), "b-flexround-w4a4", blocks=blocks, **few)
    codes = {name: stored.grid.qmax - stored.grid.qmin for name, stored in found.codes().items()}
    assert codes == {name: 2 ** weights.get(name, 4) - 1 for name in codes}
    sites = [name for name, where in found.sites if where == "input"]
    grids = {name: found.model.get_submodule(name).input_quantizer.stored() for name in sites}
    widths = {name: grid.qmax - grid.qmin for name, grid in grids.items()}
    assert widths == {name: 2 ** activations.get(name, 4) - 1 for name in widths}
    assert "stem" not in widths, "the network's input is not quantized"


def test_what_the_caller_has_switched_on_or_off_changes_no_bit():
    model, x = made(Pictures), pictures()
    usual = flexround.quantize(model, x, "q-flexround-w4a4", **FEW)
    low = torch.autocast("cpu", torch.bfloat16)
    for context in (torch.inference_mode(), low):
        with context:
            found = flexround.quantize(model, x.clone(), "q-flexround-w4a4", **FEW)
        assert torch.equal(found(x), usual(x)), context
        for name, stored in usual.codes().items():
            assert torch.equal(found.codes()[name].codes, stored.codes), context
            assert torch.equal(found.codes()[name].grid.step, stored.grid.step), context
    assert torch.tensor(1e-39) * 1 > 0, "denormal numbers are the caller's again"


def test_the_import_is_quick_and_public_names_are_listed():
    code = (
        "import sys, time; start = time.perf_counter(); import flexround; seconds = time.perf_counter() - start;"
        "assert 'torch' not in sys.modules; assert 'quantize' in dir(flexround); print(seconds)"
    )
    seconds = float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
    assert seconds < 0.3
    with pytest.raises(AttributeError, match="public are quantize, load"):
        _ = flexround.quantise


def test_the_page_s_code_runs_as_it_stands(tmp_path, monkeypatch, capsys):
    page = (ROOT / "docs/library.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, re.S)
    assert len(blocks) == 6
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torchvision.models, "resnet18", lambda: mini.resnet18(num_classes=1000))  # a fast one
    exec(compile("\n".join(blocks), "docs/library.md", "exec"), {"__name__": "__main__"})
    assert "torch.Size([1, 1000])" in capsys.readouterr().out
    assert len(ast.parse(blocks[0]).body) == 5, "the five lines"


def test_the_readme_s_code_runs(tmp_path, monkeypatch):
    shown = re.search(r"^    (import flexround, .*?)\n\n", (ROOT / "README.md").read_text(), re.S | re.M)[1]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torchvision.models, "resnet18", lambda weights=None: mini.resnet18(num_classes=1000))
    monkeypatch.setattr(flexround, "quantize", functools.partial(flexround.quantize, iters=1))
    exec(textwrap.dedent("    " + shown), {"images": torch.randn(4, 3, 64, 64)})
    assert (tmp_path / "resnet18-w4/manifest.json").exists()


def test_the_papers_iterations_on_a_cpu_are_forecast(monkeypatch):
    monkeypatch.setattr(importlib.import_module("flexround.library.quantize"), "LONG", 0)
    warnings.simplefilter("error")  # pytest puts it back
    with pytest.raises(UserWarning, match="short"):
        flexround.quantize(made(Pictures), pictures(), "b-flexround-w4", device="cpu", progress=False)
