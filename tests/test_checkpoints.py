"""Foreign checkpoints: what is read, what is refused and how, and BRECQ's names."""

import os

import pytest
import tiny
import torch
import toy
from torch import nn

from flexround.errors import InputError
from flexround.mini import models as mini
from flexround.models import checkpoints
from flexround.models.pretrained import load_pretrained
from flexround.models.surgery.lora import merge_checkpoint


@pytest.fixture
def model():
    return nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 1))


class Runs:
    """A pickle that calls a function when it is read."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("wrap", [None, "state_dict", "model"])
@pytest.mark.parametrize("zipped", [True, False])
def test_wrapped_state_dicts_are_unwrapped(tmp_path, model, wrap, zipped):
    path, wanted = tmp_path / "model.pth.tar", model.state_dict()
    for prefix in ("", "module."):
        state = {prefix + name: value for name, value in wanted.items()}
        torch.save({wrap: state, "epoch": 7} if wrap else state, path, _use_new_zipfile_serialization=zipped)
        assert toy.same(checkpoints.read_foreign(path), wanted)
    torch.save({"module.a": torch.ones(1), "b": torch.ones(1)}, path)
    assert checkpoints.read_foreign(path).keys() == {"module.a", "b"}, "a prefix of some names only stays"


def test_old_files_that_are_cut_or_damaged_are_refused_without_advice_to_run_them(tmp_path):
    path, weight = tmp_path / "old.pth", torch.ones(3)
    torch.save({"weight": weight}, path, _use_new_zipfile_serialization=False)
    content, name = path.read_bytes(), str(weight.untyped_storage()._cdata).encode()
    before, _, after = content.rpartition(name)
    for damaged, reason in (
        *((content[:end], r".+\)") for end in (0, 1, 100, -20, -1)),
        (before + b"7" * len(name) + after, "storage key"),
        (b"\xff" + content[1:], r"its pickle can't be read\);"),
    ):
        path.write_bytes(damaged)
        with pytest.raises(InputError, match=rf"old\.pth: not a whole PyTorch checkpoint \(\d+ bytes; {reason}"):
            checkpoints.read_foreign(path)


def read_directory(path):
    bert = tiny.make("bert")
    bert.config.save_pretrained(path.parent)
    load_pretrained(bert, path.parent)


def read_adapter(path):
    merge_checkpoint(tiny.make("gpt2"), path)


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("read", [checkpoints.read_foreign, read_directory, read_adapter])
def test_code_is_refused_by_name_and_not_run(tmp_path, model, read, zipped):
    marker = tmp_path / "made"
    path = tmp_path / "pytorch_model.bin"
    torch.save({"state_dict": model.state_dict(), "x": Runs(marker)}, path, _use_new_zipfile_serialization=zipped)
    called = rf"{os.mkdir.__module__}\.mkdir"
    with pytest.raises(InputError, match=rf"model\.bin: refused, because unpickling it would call {called};"):
        read(path)
    assert not marker.exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([1, 2], "holds list"),
        ({}, "holds dict"),
        ({"a": torch.ones(1), "lr": 0.1}, "entry 'lr' is float"),
        ({1: torch.ones(2)}, "entry 1"),
    ],
)
def test_files_without_a_state_dict_are_refused(tmp_path, content, message):
    torch.save(content, tmp_path / "x.pth")
    with pytest.raises(InputError, match=message):
        checkpoints.read_foreign(tmp_path / "x.pth")


def of_variance(change):
    """Return a change of the batch norm's variance."""
    return lambda state: {"1.running_var": change(state["1.running_var"])}


def under_body(state):
    return {f"body.{name}": value for name, value in state.items() if name.startswith("1.")}


TYPE = r"1\.running_var is {}, the model needs float32"
BODY = "not a checkpoint of this Sequential.*missing: {}; unexpected: {}"
SHAPE = r"3\.weight has shape \(5, 4, 1, 1\), the model needs \(2, 4, 1, 1\)"
SPARSE = "a sparse or quantized tensor of {}"


@pytest.mark.parametrize(
    ("lost", "change", "message"),
    [
        ("3.bias", lambda _: {}, BODY.format("3.bias", "none")),
        ("none", lambda _: {"fc.bias": torch.ones(2)}, BODY.format("none", "fc.bias")),
        ("1.", under_body, BODY.format("1.weight, 1.bias, .* 1 more", "body.1.weight, body.1.bias, .* 2 more")),
        ("none", lambda _: {"3.weight": torch.ones(5, 4, 1, 1)}, SHAPE),
        ("none", of_variance(lambda value: value.to(torch.int8)), TYPE.format("int8")),
        ("none", of_variance(lambda value: value.to("meta")), TYPE.format("a meta tensor of float32")),
        ("none", of_variance(lambda value: value.to_sparse()), TYPE.format(SPARSE.format("float32"))),
        (
            "none",
            of_variance(lambda value: torch.quantize_per_tensor(value, 0.1, 0, torch.qint8)),
            TYPE.format(SPARSE.format("qint8")),
        ),
        ("none", of_variance(lambda value: value.double() * 1e300), r"1\.running_var holds NaN or Inf"),
        ("none", of_variance(lambda value: value * torch.nan), r"1\.running_var holds NaN or Inf"),
    ],
)
@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_load_into_refuses_what_is_no_checkpoint_of_the_model_and_changes_nothing(model, lost, change, message):
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = {name: value + 1 for name, value in before.items() if not name.startswith(lost)} | change(before)
    with pytest.raises(InputError, match=f"some.pth: {message}"):
        checkpoints.load_into(model, state, "some.pth")
    assert toy.same(model.state_dict(), before)
    state = {name: value + 1 for name, value in before.items() if "num_batches" not in name}
    checkpoints.load_into(model, state, "file")  # a count of batches may lack
    assert torch.equal(model[1].running_mean, torch.ones(4))


def flat(model):
    """Return a MobileNetV2 in BRECQ's layout, made of the layers of torchvision's."""
    made = nn.Module()
    made.features, made.classifier = nn.Sequential(), model.classifier
    for module in model.features:
        layers = nn.Sequential(*(layer for layer in module.modules() if not list(layer.children())))
        made.features.append(layers if isinstance(module, nn.Sequential) else nn.ModuleDict({"conv": layers}))
    return made


def test_brecq_mobilenetv2_maps_back_to_torchvision():
    source, target = mini.mobilenetv2(0.25, seed=1), mini.mobilenetv2(0.25, seed=2)
    state = flat(source).state_dict()
    # The indices that the released file has: 8 entries in a block, 5 in the first.
    assert {int(name.split(".")[3]) for name in state if name.startswith("features.2.conv.")} == {0, 1, 3, 4, 6, 7}
    assert {int(name.split(".")[3]) for name in state if name.startswith("features.1.conv.")} == {0, 1, 3, 4}
    mapped = checkpoints.brecq_mobilenetv2(state)
    checkpoints.load_into(target, mapped, "flat")
    expected = source.state_dict()
    assert mapped.keys() == expected.keys()
    assert toy.same(target.state_dict(), expected)
    with pytest.raises(InputError, match="key_map"):
        checkpoints.load_into(target, checkpoints.brecq_mobilenetv2(expected), "file")


def test_a_pretrained_language_model_keeps_its_head_and_its_body_must_be_whole():
    first, second = (tiny.make("gpt_neo", seed=seed, tie_word_embeddings=False) for seed in (1, 2))
    state = first.state_dict()
    checkpoints.load_known(second, state, "here")
    assert toy.same(second.state_dict(), state)
    del state["transformer.ln_f.weight"]
    with pytest.raises(InputError, match=r"missing: transformer.ln_f.weight"):
        checkpoints.load_known(second, state, "here")
