"""The stages on a checkpoint that is streamed, from its source to a quantized evaluation."""

import functools
import json
import shutil
from pathlib import Path

import pytest
import stage_calls
import test_streaming
import torch
import yaml
from safetensors.torch import load_file
from torch import nn

from flexround import artifacts
from flexround.errors import SettingsError
from flexround.models import build
from flexround.quant.activation import ActivationQuantizer
from flexround.quant.grid import Scheme
from flexround.quant.search import initial_grid
from flexround.reconstruct import network
from flexround.settings import schema
from flexround.settings.load import load_params
from flexround.settings.validation import read_yaml
from flexround.stages import calibrate, data, evaluate, finetune, reconstruct

SCALE = Path(__file__).with_name("lm_scale.yaml")
NAMES = {"task": "wikitext2", "checkpoint": "gpt-neo-125m"}


@pytest.fixture
def scale(tmp_path):
    """Write a scale whose network is streamed from a source and not trained."""
    settings = read_yaml(SCALE)
    checkpoint = settings["checkpoints"]["gpt-neo-125m"]
    checkpoint |= {"source": "gpt-neo-125m", "streamed": True, "loader": "flexround.tasks.text.task:import_directory"}
    del checkpoint["pretrain"]
    settings["train"] = []
    path = tmp_path / "streamed.yaml"
    path.write_text(yaml.safe_dump(settings))
    return str(path)


@pytest.fixture
def sources(tmp_path, monkeypatch):
    """Make a directory as the hub has them, in shards, of a network that was trained for a moment."""
    stage = functools.partial(stage_calls.call, scale=str(SCALE))
    stage(data, task="corpus", out=tmp_path / "corpus")
    first = tmp_path / "first"
    stage(finetune, task="corpus", checkpoint="gpt-neo-125m", data=tmp_path / "corpus", out=first)
    directory = tmp_path / "sources/hub/gpt-neo-125m"
    directory.parent.mkdir(parents=True)
    test_streaming.store(directory, load_file(first / "model.safetensors"))
    model = build.architecture(load_params(str(SCALE)).checkpoint("gpt-neo-125m"), {"head": "causal-lm"})
    (directory / "config.json").write_text(json.dumps(model.config.to_dict()))
    shutil.copy(first / "tokenizer.json", directory)
    monkeypatch.setattr(finetune.sources, "verify", lambda *_: "0" * 64)
    return tmp_path / "sources"


@pytest.fixture
def made(tmp_path, scale, sources):
    """Run all stages; return the directory of ``weights``, ``quantized``, ``full`` and ``low``."""
    stage = functools.partial(stage_calls.call, scale=scale, **NAMES)
    prepared, weights, samples, out = (tmp_path / name for name in ("data", "weights", "samples", "quantized"))
    stage_calls.call(data, scale=scale, task="wikitext2", out=prepared)
    stage(finetune, sources=sources, out=weights)
    for path in (sources / "hub/gpt-neo-125m").glob("model*"):
        assert (weights / path.name).samefile(path), "nothing is written twice"
    assert {"tokenizer.json", "model.safetensors.index.json"} <= artifacts.read_manifest(weights)["files"].keys()
    stage_calls.call(calibrate, scale=scale, task="wikitext2", data=prepared, samples=32, out=samples)
    gate = tmp_path / "full/metrics.json"
    stage(evaluate, recipe="full-precision", data=prepared, weights=weights, out=gate.parent)
    made = {"recipe": "q-flexround-w8a8", "weights": weights, "samples": samples, "gate": gate}
    command = [f"--{name}={value}" for name, value in ({"scale": scale} | NAMES | made | {"out": out}).items()]
    command += [f"--state={tmp_path / 'state'}"]
    reconstruct.run(reconstruct.parser().parse_args([*command, "--preflight"]))
    assert not out.exists()
    assert not (tmp_path / "state").exists()
    reconstruct.run(reconstruct.parser().parse_args(command))
    stage(evaluate, recipe="q-flexround-w8a8", data=prepared, quantized=out, out=tmp_path / "low")
    return tmp_path


def test_from_the_source_to_a_quantized_evaluation(made):
    full, low = (artifacts.read_json(made / name / "metrics.json")["metrics"]["ppl"] for name in ("full", "low"))
    assert low != full
    assert low == pytest.approx(full, rel=0.05)


@pytest.mark.parametrize("recipe", ["full-precision", "q-flexround-w8a8"])
def test_evaluation_in_half_precision(tmp_path, scale, made, recipe):
    content = read_yaml(Path(scale))
    content["checkpoints"]["gpt-neo-125m"]["evaluated"] = "bfloat16"
    lower = tmp_path / "lower.yaml"
    lower.write_text(yaml.safe_dump(content))
    place = {"quantized": made / "quantized"} if recipe.startswith("q") else {"weights": made / "weights"}
    stage_calls.call(
        evaluate, scale=str(lower), recipe=recipe, data=made / "data", out=tmp_path / "half", **place, **NAMES
    )
    half = artifacts.read_json(tmp_path / "half/metrics.json")
    full = artifacts.read_json(made / ("low" if recipe.startswith("q") else "full") / "metrics.json")
    assert (half["precision"], full["precision"]) == ("bfloat16", "float32")
    assert half["metrics"]["ppl"] != full["metrics"]["ppl"]
    assert half["metrics"]["ppl"] == pytest.approx(full["metrics"]["ppl"], rel=0.01)


def test_lower_precision_leaves_activation_steps():
    model = nn.Sequential(nn.Linear(2, 2), ActivationQuantizer(initial_grid(torch.ones(4), Scheme(8))))
    network.lower(model, "float16")
    assert [parameter.dtype for parameter in model.parameters()] == [torch.float16, torch.float16, torch.float32]


def test_surgery_on_a_streamed_network_is_refused(tmp_path, scale, sources):
    weights = tmp_path / "weights"
    stage_calls.call(finetune, scale=scale, **NAMES, sources=sources, out=weights)
    checkpoint = load_params(scale).checkpoint("gpt-neo-125m")
    with pytest.raises(SettingsError, match="cross_layer_equalization needs the whole network"):
        reconstruct.network.to_quantize(
            checkpoint, {"head": "causal-lm"}, weights, ["cross_layer_equalization"], test_streaming.CPU
        )


def test_a_streamed_network_has_a_source():
    model = {"factory": "a:b", "blocks": "a:b"}
    with pytest.raises(ValueError, match="streamed needs a source"):
        schema.Checkpoint(model=model, streamed=True)
