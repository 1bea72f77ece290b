"""State dicts of others: which are read, which are refused, and BRECQ's names."""

import os
import pickle

import pytest
import tiny
import torch
import toy
from torch import nn

from flexround.errors import InputError
from flexround.mini import models as mini
from flexround.models import released, weights
from flexround.models.pretrained import load_pretrained
from flexround.models.weights import merge_checkpoint


@pytest.fixture
def model():
    return nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 1))


class Runs:
    """A pickle that calls a function when it is read."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("wrap", [None, "state_dict"])
@pytest.mark.parametrize("zipped", [True, False])
def test_wrapped_state_dicts_are_unwrapped(tmp_path, model, wrap, zipped):
    path, wanted = tmp_path / "model.pth.tar", model.state_dict()
    for prefix in ("", "module."):
        state = {prefix + name: value for name, value in wanted.items()}
        torch.save({wrap: state, "epoch": 7} if wrap else state, path, _use_new_zipfile_serialization=zipped)
        assert toy.same(weights.read_foreign(path), wanted)
    torch.save({"module.a": torch.ones(1), "b": torch.ones(1)}, path)
    assert weights.read_foreign(path).keys() == {"module.a", "b"}, "a prefix of some names only stays"


def read_directory(path):
    bert = tiny.make("bert")
    bert.config.save_pretrained(path.parent)
    load_pretrained(bert, path.parent)


def read_adapter(path):
    merge_checkpoint(tiny.make("gpt2"), path)


@pytest.mark.parametrize(
    ("read", "zipped"), [(weights.read_foreign, False), (read_directory, True), (read_adapter, True)]
)
def test_code_is_refused_by_name_and_not_run(tmp_path, model, read, zipped):
    marker = tmp_path / "made"
    path = tmp_path / "pytorch_model.bin"
    torch.save({"state_dict": model.state_dict(), "x": Runs(marker)}, path, _use_new_zipfile_serialization=zipped)
    with pytest.raises(pickle.UnpicklingError, match=rf"{os.mkdir.__module__}\.mkdir"):
        read(path)
    assert not marker.exists()


BAD = {  # missing, unexpected, of another shape, infinite in float32
    "3.bias": None,
    "fc.bias": torch.ones(2),
    "3.weight": torch.ones(5, 4, 1, 1),
    "1.running_mean": torch.ones(4, dtype=torch.float64) * 1e300,
}


@pytest.mark.parametrize("name", BAD)
def test_only_a_whole_checkpoint_of_the_model_is_loaded(model, name):
    state = {name: value + 1 for name, value in model.state_dict().items()}
    bad = {key: value for key, value in (state | {name: BAD[name]}).items() if value is not None}
    with pytest.raises(InputError, match=r"some\.pth: "):
        weights.load_into(model, bad, "some.pth")
    del state["1.num_batches_tracked"]
    weights.load_into(model, state, "file")
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
    mapped = released.brecq_mobilenetv2(state)
    weights.load_into(target, mapped, "flat")
    expected = source.state_dict()
    assert mapped.keys() == expected.keys()
    assert toy.same(target.state_dict(), expected)
