"""Networks as people have them: norms with activations, views, buffers that a forward pass updates, adapters."""

import copy

import onnxruntime
import peft
import pytest
import torch
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
            x = {"module": self.act, "function": nn.functional.relu6, "hard": lambda x: x * (x + 3).clamp(0, 6) / 6}[
                self.kind
            ](x)
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

    def __init__(self, persistent, used):
        super().__init__()
        self.a, self.b, self.used, self.last = nn.Linear(8, 8), nn.Linear(8, 4), used, None
        self.register_buffer("largest", torch.zeros(()), persistent=persistent)

    def forward(self, x):
        self.largest = torch.maximum(self.largest, x.detach().abs().max())
        self.last = self.a(x / self.largest if self.used else x).relu()
        return self.b(self.last)


class Keeping(nn.Module):
    """Keeps what it computes of a parameter until its mode is set, as LeViT's attention does."""

    def __init__(self):
        super().__init__()
        self.body, self.head, self.kept = nn.Linear(8, 8), nn.Linear(8, 4), {}
        self.table = nn.Parameter(torch.randn(3))
        self.register_buffer("index", torch.arange(8) % 3, persistent=False)

    def train(self, mode=True):
        self.kept.clear()
        return super().train(mode)

    def forward(self, x):
        if "bias" not in self.kept:
            self.kept["bias"] = self.table[self.index]
        return self.head(self.body(x).relu() + self.kept["bias"])


def images(rows=8, size=16):
    return torch.randn(rows, 3, size, size, generator=torch.Generator().manual_seed(0))


def vectors():
    return torch.randn(16, 8, generator=torch.Generator().manual_seed(0))


NETWORKS = {
    "folds": (Folds, images),
    "views": (Views, images),
    "keeping": (Keeping, vectors),
    **{f"seen {kind}": (lambda kind=kind: Seen(*kind), vectors) for kind in ((0, 0), (0, 1), (1, 0), (1, 1))},
}


@pytest.mark.parametrize("kind", NETWORKS)
def test_networks_of_all_kinds_compute_the_same_saved_and_loaded(tmp_path, kind):
    build, data = NETWORKS[kind]
    model, x = made(build), data()
    buffers, inside = copy.deepcopy(dict(model.named_buffers())), copy.deepcopy(model)
    eight = flexround.Recipe(setting="B", rounding="flexround", w_bits=8)
    found = flexround.quantize(model, x, eight, batch=3, **FEW)
    full = made(build)(x)
    assert (found(x) - full).abs().max() < 0.02 * full.abs().max()
    again = flexround.load(found.save(tmp_path / "out"), made(build))
    assert torch.equal(again(x), found(x))
    assert all(torch.equal(value, buffers[name]) for name, value in model.named_buffers())
    if "seen" in kind:
        flexround.quantize(inside, x, eight, inplace=True, **FEW)
        assert inside.largest == 0


@pytest.mark.parametrize("kind", ["module", "function", "hard"])
def test_errors_are_measured_behind_activations(kind):
    model, x = made(lambda: Shared(kind)), images()[:, :1].expand(-1, 4, -1, -1)
    blocks = auto_blocks.automatic(model, x[:2])
    assert [block.name for block in blocks] == ["convs.0", "convs.1", "convs.2", "head"]
    with torch.no_grad():
        for block in blocks[:3]:
            given = block(block.before(x))
            x, wanted = given, nn.functional.hardswish(given) if kind == "hard" else nn.functional.relu6(given)
            torch.testing.assert_close(block.behind(given.clone()), wanted)


def test_another_default_device_is_taken():
    model, x = made(Folds), images()
    torch.set_default_device("meta")
    try:
        found = flexround.quantize(model, x, "b-lrq-w4", device="cpu", inplace=True, **FEW)
    finally:
        torch.set_default_device(None)
    assert found(images()).isfinite().all()


@pytest.mark.parametrize("recipe", ["b-flexround-w4", "b-flexround-w4a4", "q-flexround-w4a4", "b-gptq-w4", "b-rtn-w4"])
def test_each_record_has_the_same_errors(recipe):
    found = flexround.quantize(made(lambda: Seen(1, 0)), vectors(), recipe, **FEW)
    assert all({"block", "error_rtn", "error_hard"} <= record.keys() for record in found.report)


def test_masks_that_are_added_are_masks():
    ids, real = words()[:, :8], torch.arange(8) < 6
    found = [
        flexround.quantize(llama(), {"input_ids": ids, "attention_mask": mask.expand(len(ids), -1)}, "b-rtn-w4", **FEW)
        for mask in (real.long(), torch.zeros(8).masked_fill(~real, -1e9))
    ]
    assert found[0].report[-1]["error_hard"] == found[1].report[-1]["error_hard"]
    with pytest.raises(InputError, match="attention_mask"):
        flexround.quantize(llama(), {"input_ids": ids, "attention_mask": torch.zeros(ids.shape)}, "b-rtn-w4", **FEW)


class Doubled(type(llama())):
    def forward(self, *arguments, **keywords):
        output = super().forward(*arguments, **keywords)
        output.logits = output.logits * 2
        return output


def test_adapters_are_merged_and_a_parent_class_is_no_reader(tmp_path):
    config = peft.LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False)
    model = peft.get_peft_model(llama(), config).eval()
    found = flexround.quantize(model, words(), "b-rtn-w4", w_scheme="symmetric", **FEW)
    assert not any("lora" in name for name in found.codes())
    found.export("compressed-tensors", tmp_path / "merged")  # which transformers reads
    other = flexround.quantize(Doubled(llama().config).eval(), words(), "b-rtn-w4", w_scheme="symmetric", **FEW)
    with pytest.raises(InputError):
        other.export("compressed-tensors", tmp_path / "doubled")


class Tokens(nn.Module):
    def __init__(self, rows):
        super().__init__()
        self.a, self.token, self.b, self.rows = (
            nn.Linear(8, 8),
            nn.Parameter(torch.randn(1, 1, 8)),
            nn.Linear(8, 4),
            rows,
        )

    def forward(self, x):
        x = self.a(x)[:, None]
        return self.b(torch.cat([self.token.expand(self.rows(x), -1, -1), x.relu()], 1)).mean(1)


def test_a_fixed_batch_is_reported_and_x64_precision_works(tmp_path):
    x = vectors()
    free = flexround.quantize(made(lambda: Tokens(lambda x: x.shape[0])), x, "q-flexround-w8a8", **FEW)
    free.export("onnx", tmp_path / "free", example=x[:2])
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.x64quantprecision", "1")
    session = onnxruntime.InferenceSession(tmp_path / "free/model.onnx", options)
    got = torch.from_numpy(session.run(None, {session.get_inputs()[0].name: x.numpy()})[0])
    assert (got - free(x)).abs().max() < 0.02 * free(x).abs().max()
    fixed = flexround.quantize(made(lambda: Tokens(len)), x, "b-rtn-w4", **FEW)
    with pytest.warns(UserWarning, match="2 rows"):
        fixed.export("onnx", tmp_path / "fixed", example=x[:2])


@pytest.mark.parametrize(("lr", "said"), [(1e-12, "not learned"), (2.0, "worse than round-to-nearest")])
def test_rates_that_are_far_too_small_or_large_are_said(lr, said):
    with pytest.warns(UserWarning, match=said):
        flexround.quantize(made(lambda: Seen(1, 0)), vectors(), "b-flexround-w4", lr=lr, iters=20, progress=False)


def test_a_network_without_layers_of_the_kind_is_named():
    with pytest.raises(InputError, match="convolution"):
        flexround.quantize(nn.Sequential(nn.Conv1d(4, 8, 3)), torch.randn(8, 4, 16), "b-flexround-w4", **FEW)
