"""The stages on a checkpoint that is streamed, from its source to a quantized evaluation."""

import copy
import json
import shutil
from pathlib import Path

import pytest
import stage_calls
import test_streaming
import torch
import yaml
from accelerate.state import AcceleratorState
from safetensors.torch import load_file

from flexround.errors import SettingsError
from flexround.io import artifacts, sources
from flexround.models import build
from flexround.reconstruct import network
from flexround.settings import schema
from flexround.settings.load import read_scale

SCALE = Path(__file__).with_name("lm_scale.yaml")
NAMES = ("wikitext2", "gpt-neo-125m")


@pytest.fixture
def scale(tmp_path):
    """Write a scale whose network is streamed from a source and not trained."""
    settings = read_scale(str(SCALE))
    checkpoint = settings["checkpoints"]["gpt-neo-125m"]
    checkpoint |= {"source": "gpt-neo-125m", "streamed": True, "loader": "flexround.models.pretrained:import_directory"}
    del checkpoint["pretrain"]
    settings["train"] = []
    path = tmp_path / "streamed.yaml"
    path.write_text(yaml.safe_dump(settings))
    return str(path)


@pytest.fixture
def work(tmp_path, scale, monkeypatch):
    """Make a directory as the hub has them, in shards, of a network that was trained for a moment."""
    first = stage_calls.Work(SCALE, tmp_path)
    trained = first.weights("corpus", "gpt-neo-125m")
    directory = tmp_path / "results/sources/hub/gpt-neo-125m"
    directory.parent.mkdir(parents=True)
    test_streaming.store(directory, load_file(trained / "model.safetensors"))
    model = build.architecture(first.params.checkpoint("gpt-neo-125m"), {"head": "causal-lm"})
    (directory / "config.json").write_text(json.dumps(model.config.to_dict()))
    shutil.copy(trained / "tokenizer.json", directory)
    monkeypatch.setattr(sources, "verify", lambda *_: "0" * 64)
    return stage_calls.Work(scale, tmp_path)


def test_from_the_source_to_a_quantized_evaluation(work):
    weights = work.weights(*NAMES)
    for path in (work.root / "results/sources/hub/gpt-neo-125m").glob("model*"):
        assert (weights / path.name).samefile(path), "nothing is written twice"
    assert {"tokenizer.json", "model.safetensors.index.json"} <= artifacts.read_manifest(weights)["files"].keys()
    full, low = (work.metrics(*NAMES, recipe)["metrics"]["ppl"] for recipe in ("full-precision", "q-flexround-w8a8"))
    assert low != full
    assert low == pytest.approx(full, rel=0.05)


def test_a_forecast_writes_nothing(work, caplog):
    caplog.set_level("INFO")
    out = work.quantized(*NAMES, "q-flexround-w8a8", preflight=True)
    assert not out.exists()
    assert not (work.root / ".state").exists()
    assert '"iteration_seconds"' in caplog.text


@pytest.mark.parametrize("recipe", ["full-precision", "q-flexround-w8a8"])
def test_evaluation_in_half_precision(tmp_path, scale, work, recipe, monkeypatch):
    full = work.metrics(*NAMES, recipe)
    content = read_scale(scale)
    content["checkpoints"]["gpt-neo-125m"]["evaluated"] = "bfloat16"
    (tmp_path / "lower.yaml").write_text(yaml.safe_dump(content))
    changed = stage_calls.Work(tmp_path / "lower.yaml", tmp_path)
    lowered, lower_all = [], network.lower
    monkeypatch.setattr(
        network, "lower", lambda model, kind: lower_all(lowered.append(copy.deepcopy(model)) or model, kind)
    )
    half = changed.metrics(*NAMES, recipe, again=True)
    assert (half["precision"], full["precision"]) == ("bfloat16", "float32")
    kinds = {name.rpartition(".")[2]: parameter.dtype for name, parameter in lowered[0].named_parameters()}
    steps = kinds.pop("raw_step", torch.float32)
    assert (set(kinds.values()), steps) == ({torch.bfloat16}, torch.float32), "never whole in float32"
    assert half["metrics"]["ppl"] != full["metrics"]["ppl"]
    assert half["metrics"]["ppl"] == pytest.approx(full["metrics"]["ppl"], rel=0.01)


def test_adapters_on_a_streamed_network(tmp_path, scale, work):
    """The base is read in half precision and the result is written in shards, which are streamed again."""
    AcceleratorState._reset_state(True)  # it keeps the precision of the network that was trained first
    content = read_scale(scale)
    train = {"epochs": 1, "batch": 8, "lr": 0.01, "lora": {"rank": 2}, "precision": "bf16", "frozen": "float16"}
    content["train"] = [{"when": {"task": NAMES[0]}, "set": train, "source": "a test"}]
    (tmp_path / "adapters.yaml").write_text(yaml.safe_dump(content))
    plain = work.model(*NAMES)
    shutil.rmtree(work.weights(*NAMES))
    trained = stage_calls.Work(tmp_path / "adapters.yaml", tmp_path)
    out = trained.weights(*NAMES)
    AcceleratorState._reset_state(True)
    assert {"model.safetensors", "tokenizer.json"} <= set(artifacts.read_manifest(out)["files"])
    for (name, value), old in zip(trained.model(*NAMES).state_dict().items(), plain.state_dict().values(), strict=True):
        adapted = name.endswith(("q_proj.weight", "v_proj.weight"))
        assert torch.allclose(value, old, rtol=1e-3, atol=1e-6) is not adapted, name
    assert trained.metrics(*NAMES, "q-flexround-w8a8", again=True)["metrics"]["ppl"] > 0


def test_surgery_on_a_streamed_network_is_refused(work):
    weights, checkpoint = work.weights(*NAMES), work.params.checkpoint("gpt-neo-125m")
    with pytest.raises(SettingsError, match="cross_layer_equalization needs the whole network"):
        network.to_quantize(
            checkpoint, {"head": "causal-lm"}, weights, ["cross_layer_equalization"], test_streaming.CPU
        )


def test_a_streamed_network_has_a_source():
    model = {"factory": "a:b", "blocks": "a:b"}
    with pytest.raises(ValueError, match="streamed needs a source"):
        schema.Checkpoint(model=model, streamed=True)
