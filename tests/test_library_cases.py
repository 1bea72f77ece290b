"""Networks as people have them: norms with activations, views, buffers that a forward pass updates, adapters."""

import copy

import peft
import pytest
import torch
import transformers
from own_networks import FEW, llama, made, words
from torch import nn

import flexround
from flexround.errors import InputError
from flexround.library import auto_blocks


class Active(nn.BatchNorm2d):
    """A batch norm with an activation, as timm's."""

    def forward(self, x):
        return nn.functional.silu(super().forward(x))


class Standardized(nn.Conv2d):
    """Computes with another weight than its own."""

    def forward(self, x):
        return self._conv_forward(x, self.weight - self.weight.mean((1, 2, 3), keepdim=True), self.bias)


class Folds(nn.Module):
    """Batch norms behind all kinds of things, registered in another order than they run."""

    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList([Active(8), nn.BatchNorm2d(8), nn.BatchNorm2d(8), nn.BatchNorm2d(8)])
        self.first, self.own = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3)), Standardized(8, 8, 3)
        self.both, self.up, self.head = nn.Conv2d(8, 8, 3), nn.ConvTranspose2d(8, 8, 2), nn.Linear(8, 4)

    def forward(self, x):
        x = self.norms[1](self.own(self.norms[0](self.first(x))))
        x = self.both(x)
        x = self.norms[3](self.up(self.norms[2](x) + x))
        return self.head(x.relu().mean((2, 3)))


class Shared(nn.Module):
    """One activation behind several layers, or functions, in place."""

    def __init__(self, kind):
        super().__init__()
        self.convs, self.head, self.kind = nn.ModuleList(nn.Conv2d(4, 4, 3) for _ in range(3)), nn.Linear(4, 2), kind
        self.act = nn.ReLU6(inplace=True)

    def forward(self, x):
        for conv in self.convs:
            x = conv(x)
            x = self.act(x) if self.kind == "module" else x * (x + 3).clamp(0, 6) / 6
        return self.head(x.flatten(2).mean(2))


class Patches(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 4, 4)

    def forward(self, x):
        return self.conv(x).permute(0, 2, 3, 1)


class Views(nn.Module):
    """Legal on the strides that its parts give, and on no others."""

    def __init__(self):
        super().__init__()
        self.stem, self.body, self.head = Patches(), nn.Linear(16, 16), nn.Linear(16 * 16, 4)

    def forward(self, x):
        x = self.stem(x)
        return self.head(self.body(x.view(len(x), -1, 16)).relu().view(len(x), -1))


class Seen(nn.Module):
    """Keeps the largest input, and what it gave."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.last = nn.Linear(8, 8), nn.Linear(8, 4), None
        self.register_buffer("largest", torch.zeros(()))

    def forward(self, x):
        self.largest = torch.maximum(self.largest, x.detach().abs().max())
        self.last = self.a(x / self.largest).relu()
        return self.b(self.last)


def images(rows=8, size=16):
    return torch.randn(rows, 3, size, size, generator=torch.Generator().manual_seed(0))


def vectors():
    return torch.randn(16, 8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(("build", "data"), [(Folds, images), (Views, images), (Seen, vectors)])
def test_networks_of_all_kinds_compute_the_same_saved_and_loaded(tmp_path, build, data):
    model, x = made(build), data()
    buffers = copy.deepcopy(dict(model.named_buffers()))
    eight = flexround.Recipe(setting="B", rounding="flexround", w_bits=8)
    found = flexround.quantize(model, x, eight, batch=3, **FEW)
    full, out = made(build)(x), found.save(tmp_path / "out")
    assert (found(x) - full).abs().max() < 0.02 * full.abs().max()
    again = flexround.load(out, made(build))
    assert torch.equal(again(x), found(x))
    assert all(torch.equal(value, buffers[name]) for name, value in model.named_buffers())


@pytest.mark.parametrize("kind", ["module", "hard"])
def test_errors_are_measured_behind_activations(kind):
    model, x = made(lambda: Shared(kind)), images()[:, :1].expand(-1, 4, -1, -1)
    blocks = auto_blocks.automatic(model, x[:2])
    assert [block.name for block in blocks] == ["convs.0", "convs.1", "convs.2", "head"]
    with torch.no_grad():
        for block in blocks[:3]:
            given = block(block.before(x))
            x, wanted = given, nn.functional.hardswish(given) if kind == "hard" else nn.functional.relu6(given)
            torch.testing.assert_close(block.behind(given.clone()), wanted)


def test_adapters_are_merged(tmp_path):
    config = peft.LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False)
    model = peft.get_peft_model(llama(), config).eval()
    found = flexround.quantize(model, words(), "b-rtn-w4", w_scheme="symmetric", **FEW)
    assert not any("lora" in name for name in found.codes())
    found.export("compressed-tensors", tmp_path / "merged")
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype=torch.float32)
    torch.testing.assert_close(again(words()).logits, found(words()).logits, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("lr", "said"), [(1e-12, "not learned"), (2.0, "worse than round-to-nearest")])
def test_rates_that_are_far_too_small_or_large_are_said(lr, said):
    with pytest.warns(UserWarning, match=said):
        flexround.quantize(made(Seen), vectors(), "b-flexround-w4", lr=lr, iters=20, progress=False)


def test_a_network_without_layers_of_the_kind_is_named():
    with pytest.raises(InputError, match="convolution"):
        flexround.quantize(nn.Sequential(nn.Conv1d(4, 8, 3)), torch.randn(8, 4, 16), "b-flexround-w4", **FEW)
