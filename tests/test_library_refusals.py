"""What ``flexround.quantize`` refuses, each with one message, and what it says that it did not learn."""

import pytest
import tiny
import torch
import torch.nn.functional as F
from own_networks import FEW, Across, Pictures, made, pictures, words
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import flexround
from flexround.errors import InputError, NumericalError, SettingsError
from flexround.library import samples
from flexround.mini import models as mini
from flexround.quant.flexround import FlexRound
from flexround.reconstruct import phases
from flexround.reconstruct.state import MemoryState

IDS = torch.zeros(2, 3, dtype=torch.int64)


def test_samples_of_all_kinds_are_the_same():
    x, labels = pictures(), torch.zeros(16)
    for given in (x, [x[:9], x[9:]], [(x, labels)], {"pixel_values": x}, DataLoader(TensorDataset(x, labels), 5)):
        assert torch.equal(samples.collect(given).x, x)
    ids = words()
    mask = torch.ones_like(ids)
    mask[3, 8:] = 0
    whole = {"input_ids": ids, "attention_mask": mask}
    for given in (whole, [{name: value[rows] for name, value in whole.items()} for rows in (slice(9), slice(9, None))]):
        found = samples.collect(given)
        assert torch.equal(found.x, torch.stack([ids, torch.zeros_like(ids)], 1))
        assert torch.equal(found.mask, mask.bool())
    for given in (ids, {"input_ids": ids, "attention_mask": None, "token_type_ids": None, "pixel_values": None}):
        assert samples.collect(given).mask is None


def test_unused_keys_of_a_mapping_are_named_but_labels():
    ids = words()
    with pytest.warns(UserWarning, match="without position_ids$"):
        samples.collect([{"input_ids": ids, "position_ids": ids, "labels": ids}])


@pytest.mark.parametrize(
    "given",
    [
        (torch.zeros(2, 3), torch.zeros(2)),
        torch.full((2, 3), float("nan")),
        torch.zeros(2, 3, 8, 8, dtype=torch.uint8),
        {"input_ids": IDS, "attention_mask": torch.tensor([[0, 1, 1]] * 2)},
    ],
)
def test_samples_that_can_t_be_used(given):
    with pytest.raises(InputError, match=r"^samples: "):
        samples.collect(given)


class Tied(nn.Module):
    """Two layers with one weight."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.last = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.last(torch.relu(self.second(torch.relu(self.first(x)))))


class Drops(Across):
    """Draws numbers after its last layer."""

    def forward(self, x):
        return F.dropout(super().forward(x))


def test_outputs_that_are_drawn_are_refused():
    with pytest.raises(InputError, match="two outputs"):
        flexround.quantize(made(Drops), rows(), "b-rtn-w4", **FEW)


def rows():
    return torch.randn(40, 4)


def with_norm():
    return nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)), nn.Linear(4, 4))


def quantized(recipe="b-rtn-w4"):
    return flexround.quantize(made(Pictures), pictures(), recipe, **FEW).model


def compiled():
    return nn.Sequential(nn.Linear(4, 4), torch.compile(nn.Sequential(nn.ReLU(), nn.Linear(4, 4)), backend="eager"))


@pytest.mark.parametrize(
    ("build", "data", "blocks", "message"),
    [
        (lambda: made(Tied), rows, None, r"first\.weight, second\.weight are one tensor"),
        (lambda: made(Across), rows, ["b", "c"], "of b, which runs before it.*blocks="),
        (lambda: made(Across), rows, ["d"], "d: is no block"),
        (with_norm, rows, None, r"0\.weight: is computed from other tensors"),
        (quantized, pictures, None, "Pictures: is quantized already"),
        (compiled, rows, None, r"1: is compiled"),
    ],
)
def test_a_network_that_can_t_be_quantized_is_one_message(build, data, blocks, message):
    with pytest.raises(InputError, match=message):
        flexround.quantize(build(), data(), "b-flexround-w4", blocks=blocks, **FEW)


class Penalised(FlexRound):
    """A rounding that must not learn."""

    def regularizer(self, beta):
        return sum(parameter.square().sum() for parameter in self.parameters())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"recipe": "b-flexround-w5"}, "did you mean 'b-flexround-w4'"),
        ({"scale": "shrot"}, "did you mean 'short'"),
        ({"rounding": Penalised}, "reg_weight"),
        ({"iterations": 5}, "did you mean 'iters'"),
        ({"batch": 64}, "samples=16 is fewer than batch=64"),
    ],
)
def test_a_wrong_argument_is_one_message(arguments, message):
    given = {"recipe": "b-flexround-w4", "progress": False} | arguments
    with pytest.raises(SettingsError, match=message):
        flexround.quantize(made(Pictures), pictures(), **given)


def test_the_weight_of_a_regularizer_counts():
    model, x, few = nn.Sequential(nn.Linear(4, 4)), torch.randn(16, 4), FEW | {"rounding": Penalised}
    found = [flexround.quantize(model, x, "b-flexround-w4", reg_weight=weight, **few) for weight in (0, 1e3)]
    assert found[0].report[0]["loss_after"] != found[1].report[0]["loss_after"]


def test_a_failed_call_leaves_nothing_attached(monkeypatch):
    model = made(Pictures)
    stopped = iter(range(3))
    monkeypatch.setattr(MemoryState, "commit", lambda *_: next(stopped))
    original = phases.harden

    def harden(of_block):
        if of_block[0].name.startswith("stage.1"):
            raise KeyboardInterrupt
        return original(of_block)

    monkeypatch.setattr(phases, "harden", harden)
    with pytest.raises(KeyboardInterrupt):
        flexround.quantize(model.to(torch.bfloat16), pictures(), "q-flexround-w4a4", inplace=True, **FEW)
    kinds = {type(module).__name__ for module in made(Pictures).modules()}
    assert {type(module).__name__ for module in model.modules()} == kinds - {"BatchNorm2d"} | {"Identity"}
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert {value.dtype for value in model.state_dict().values()} == {torch.bfloat16}


def test_what_is_not_learned_is_said_once():
    words_said = "not learned, at round-to-nearest: stem; in floating point: down.0.weight, down.2.conv1.weight"
    few = FEW | {"blocks": ["stem", "stage"], "reconstruct_stem": False}
    with pytest.warns(UserWarning, match=words_said) as said:
        found = flexround.quantize(made(Pictures), pictures(), "b-flexround-w4", **few)
    assert len(said) == 1
    assert [(record["learned"], record["nearest"]) for record in found.report] == [(False, ["stem"]), (True, [])]
    with pytest.warns(UserWarning, match=r"Across is one block.*give blocks="):
        flexround.quantize(made(Across), torch.randn(16, 4), "b-flexround-w4", **FEW)


class Loop(nn.Module):
    """Calls a layer three times, and reads the weight of another one without a call."""

    def __init__(self):
        super().__init__()
        self.first, self.body, self.read, self.last = (nn.Linear(4, 4) for _ in range(4))

    def forward(self, x):
        x = torch.relu(self.first(x))
        for _ in range(3):
            x = x + torch.relu(self.body(x))
        return self.last(F.linear(x, self.read.weight))


def test_layers_whose_inputs_stay_in_floating_point_are_named(tmp_path):
    with pytest.warns(UserWarning, match="inputs in floating point: body, read$"):
        found = flexround.quantize(made(Loop), rows(), "q-rtn-w4a8", **FEW)
    assert found.origin.left[-1] in (found.save(tmp_path) / "README.md").read_text()


def test_no_input_of_a_known_network_stays_in_floating_point():
    for model in (mini.resnet18().eval(), mini.mobilenetv2(seed=1).eval()):
        found = flexround.quantize(model, torch.randn(8, 3, 32, 32), "q-rtn-w4a8", **FEW)
        assert found.origin.left == ()
    for kind in ("bert", "gpt2", "gpt_neo", "opt", "llama"):
        with pytest.warns(UserWarning, match="in floating point"):
            found = flexround.quantize(tiny.make(kind, seed=0), words(), "q-rtn-w4a8", **FEW)
        assert [record["inputs"] for record in found.report[-2:]] == [[], []]


def test_a_network_that_gives_nan_is_named():
    model = made(Pictures)
    model.stage[1].conv1.weight.data[0] = float("nan")
    with pytest.raises((InputError, NumericalError), match=r"stage\.1"):
        flexround.quantize(model, pictures(), "b-flexround-w4", **FEW)


def test_too_little_memory_for_comparing_is_no_other_cut(monkeypatch):
    calls = []

    def forward(self, x):
        calls.append(len(x))
        if len(calls) == 7:  # the first six are of the network alone
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 64 bytes")
        return F.linear(x, self.weight, self.bias)

    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    monkeypatch.setattr(nn.Linear, "forward", forward)
    message = "Sequential, compared with its blocks: the host's memory is too small: .*smaller"
    with pytest.raises(InputError, match=message):
        flexround.quantize(model, torch.randn(16, 4), "b-rtn-w4", **FEW)
