"""The stages on a checkpoint that is streamed, from its source to a quantized evaluation."""

import functools
import json
import shutil
from pathlib import Path

import pytest
import test_streaming
import torch
import yaml
from accelerate.state import AcceleratorState
from safetensors.torch import load_file
from stage_calls import Work

from flexround.io import artifacts, sources
from flexround.models import build
from flexround.settings.validation import read_yaml

SCALE = Path(__file__).with_name("lm_scale.yaml")
NETWORK = "gpt-neo-125m"
NAMES, SOURCE = ("wikitext2", NETWORK), f"results/sources/hub/{NETWORK}"


def write_source(root):
    """Make a source as the hub has them, in shards, of a network that is trained for a moment."""
    work = Work(SCALE, root)
    trained, directory = work.weights("corpus", NETWORK), work.root / SOURCE
    directory.parent.mkdir(parents=True)
    test_streaming.store(directory, load_file(trained / "model.safetensors"))
    model = build.architecture(work.params.checkpoint(NETWORK), {"head": "causal-lm"})
    (directory / "config.json").write_text(json.dumps(model.config.to_dict()))
    shutil.copy(trained / "tokenizer.json", directory)


def streamed(root, train=(), **changes):
    """Return the work of a scale whose network is streamed from that source and, unless told, not trained."""
    settings = read_yaml(SCALE) | {"train": list(train), "extends": str(SCALE.with_name("tiny_scale.yaml"))}
    checkpoint = settings["checkpoints"][NETWORK]
    checkpoint |= {"source": NETWORK, "streamed": True, "loader": "flexround.models.pretrained:import_directory"}
    del checkpoint["pretrain"]
    checkpoint |= changes
    (root / "streamed.yaml").write_text(yaml.safe_dump(settings))
    return Work(root / "streamed.yaml", root)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    root = tmp_path_factory.mktemp("streamed")
    write_source(root)
    return root


@pytest.fixture
def make(source, tmp_path, monkeypatch):
    """Return ``streamed`` for a copy of the source."""
    monkeypatch.setattr(sources, "verify", lambda *_: "0" * 64)
    shutil.copytree(source, tmp_path, dirs_exist_ok=True)
    return functools.partial(streamed, tmp_path)


def test_from_the_source_to_an_evaluation_in_each_precision(make, caplog):
    caplog.set_level("INFO")
    work = make()
    weights = work.weights(*NAMES)
    for path in (work.root / SOURCE).glob("model*"):
        assert (weights / path.name).samefile(path), "nothing is written twice"
    assert {"tokenizer.json", "model.safetensors.index.json"} <= artifacts.read_manifest(weights)["files"].keys()
    assert not work.quantized(*NAMES, "q-flexround-w8a8", preflight=True).exists()
    assert not (work.root / ".state").exists(), "a forecast writes nothing"
    assert '"iteration_seconds"' in caplog.text
    recipes = ("full-precision", "q-flexround-w8a8")
    found = {recipe: work.metrics(*NAMES, recipe) for recipe in recipes}
    assert {each["precision"] for each in found.values()} == {"float32"}
    full = {recipe: each["metrics"]["ppl"] for recipe, each in found.items()}
    assert full[recipes[0]] != full[recipes[1]]
    assert full[recipes[1]] == pytest.approx(full[recipes[0]], rel=0.05)
    changed = make(evaluated="bfloat16")
    for recipe in recipes:
        half = changed.metrics(*NAMES, recipe, again=True)
        assert half["precision"] == "bfloat16"
        assert half["metrics"]["ppl"] != full[recipe]
        assert half["metrics"]["ppl"] == pytest.approx(full[recipe], rel=0.01)
    shutil.rmtree(work.root / "results/lm")
    resident = make(evaluated="bfloat16", streamed=False)
    assert resident.metrics(*NAMES, recipes[1])["metrics"] == half["metrics"], "made and evaluated in memory"


def test_adapters_on_a_streamed_network(make):
    """The base is read in half precision and the result is written in shards, which are streamed again."""
    AcceleratorState._reset_state(True)  # it keeps the precision of the network that was trained first
    train = {"epochs": 1, "batch": 8, "lr": 0.01, "lora": {"rank": 2}, "precision": "bf16", "frozen": "float16"}
    work = make()
    plain = work.model(*NAMES).state_dict()
    shutil.rmtree(work.weights(*NAMES))
    trained = make([{"when": {"task": NAMES[0]}, "set": train, "source": "a test"}])
    out = trained.weights(*NAMES)
    AcceleratorState._reset_state(True)
    assert {"model.safetensors", "tokenizer.json"} <= set(artifacts.read_manifest(out)["files"])
    for name, value in trained.model(*NAMES).state_dict().items():
        adapted = name.endswith(("q_proj.weight", "v_proj.weight"))
        assert torch.allclose(value, plain[name], rtol=1e-3, atol=1e-6) is not adapted, name
    assert trained.metrics(*NAMES, "q-flexround-w8a8")["metrics"]["ppl"] > 0
