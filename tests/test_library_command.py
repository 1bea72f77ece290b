"""``python -m flexround quantize``: a language model in a Hugging Face directory, from its files."""

import json
import re
import subprocess
import sys

import numpy as np
import pytest
import tokenizers
import torch
import transformers
from own_networks import FEW, llama, words
from safetensors.torch import load_file, save_file
from test_library_export import run_onnx
from transformers.models.qwen3 import modeling_qwen3

import flexround
from flexround.errors import InputError, SettingsError
from flexround.library import command
from flexround.models.weights import Shards


@pytest.fixture
def directory(tmp_path):
    """A LLaMA and its tokenizer as Hugging Face writes them, in two shards, and a text."""
    path = tmp_path / "model"
    llama().save_pretrained(path, max_shard_size="8KB")
    words = {word: number for number, word in enumerate(["<pad>", *"abcdefghij"])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<pad>"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(path / "tokenizer.json"))
    letters = torch.randint(0, 10, (400,), generator=torch.Generator().manual_seed(0))
    (tmp_path / "text").write_text(" ".join("abcdefghij"[letter] for letter in letters))
    return path


def command_line(directory, *more):
    given = ["--text", str(directory.parent / "text"), "--out", str(directory.parent / "out"), "--samples", "16"]
    given += ["--length", "12", "--recipe", "q-flexround-w8a8", "--state", str(directory.parent / "state")]
    return command.parser().parse_args(["quantize", str(directory), *given, "--set", "iters=4", *more])


def small(name, **more):
    """A small network of transformers, with the head that its class has."""
    torch.manual_seed(0)
    kind = getattr(transformers, name)
    sizes = {"vocab_size": 11, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "pad_token_id": 0}
    return kind(kind.config_class(**sizes | {"num_attention_heads": 2, "max_position_embeddings": 12} | more)).eval()


def decoder(kind):
    """A small decoder."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 11, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 3, "pad_token_id": 0}
    sizes |= {"num_attention_heads": 2, "num_key_value_heads": 1, "bos_token_id": 1, "eos_token_id": 1}
    sizes |= {} if kind == "Phi3" else {"head_dim": 8}
    config = getattr(transformers, f"{kind}Config")(**sizes)
    return transformers.AutoModelForCausalLM.from_config(config).eval()


def store(model, directory):
    """Write a model over the one in a directory."""
    for path in directory.glob("model*"):
        path.unlink()
    model.save_pretrained(directory, max_shard_size="8KB")


@pytest.mark.filterwarnings("ignore:in floating point")
@pytest.mark.parametrize("kind", ["Llama", "Gemma3Text"])
def test_a_directory_is_quantized_from_its_files(directory, kind, monkeypatch):
    store(decoder(kind), directory)
    held, fill = set(), Shards.fill

    def counted(self, *arguments):
        fill(self, *arguments)
        held.add(sum(not layer.mlp.down_proj.weight.is_meta for layer in self.model.model.layers))

    monkeypatch.setattr(Shards, "fill", counted)
    command.quantize(command_line(directory))
    assert held == {0, 1}, "layers in memory at once"
    monkeypatch.undo()
    out = directory.parent / "out"
    files = {"config.json", "tokenizer.json", "manifest.json", "record.json", "README.md"}
    assert {path.name for path in out.iterdir()} >= files
    assert not list((directory.parent / "state").iterdir())
    found = flexround.load(out, decoder(kind))
    rows = command.calibration(directory, directory.parent / "text", 16, 12, 0)[:, 0]
    whole = flexround.quantize(
        decoder(kind), rows, "q-flexround-w8a8", **FEW | {"a_iters": found.hyper.a_iters, "w_scheme": "symmetric"}
    )
    assert torch.equal(found(rows).logits, whole(rows).logits), "as in memory"
    with pytest.raises(InputError, match="out: not empty"):
        command.quantize(command_line(directory))


EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2, "num_key_value_heads": 2}


@pytest.mark.filterwarnings("ignore:in floating point", "ignore:inputs in floating point")
@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("MixtralForCausalLM", EXPERTS),  # files hold each expert, the model has all in one tensor
        ("BertForMaskedLM", {}),
        ("RobertaForSequenceClassification", {"max_position_embeddings": 14}),  # no layer runs without the embeddings
    ],
)
def test_a_directory_gives_the_codes_of_the_library(directory, name, more):
    store(small(name, **more), directory)
    command.quantize(command_line(directory, "--set", "a_iters=2"))
    found = flexround.load(directory.parent / "out", small(name, **more))
    rows = command.calibration(directory, directory.parent / "text", 16, 12, 0)[:, 0]
    whole = flexround.quantize(small(name, **more), rows, "q-flexround-w8a8", **FEW, w_scheme="symmetric")
    assert found.origin.left == whole.origin.left
    assert torch.equal(found(rows)[0], whole(rows)[0])


def test_names_of_other_models_are_converted_only_whole(directory):
    """bert-base-uncased: both heads of pretraining, and norms as they were named in TensorFlow."""
    store(small("BertForPreTraining"), directory)
    content, path = json.loads((directory / "config.json").read_text()), directory / "model.safetensors"
    (directory / "config.json").write_text(json.dumps(content | {"architectures": ["BertForMaskedLM"]}))
    stored = {name: value for file in directory.glob("*.safetensors") for name, value in load_file(file).items()}
    for each in directory.glob("*.safetensors*"):
        each.unlink()
    old = {name.replace("LayerNorm.weight", "LayerNorm.gamma"): value for name, value in stored.items()}
    save_file(old, path, {"format": "pt"})
    command.quantize(command_line(directory, "--recipe", "b-rtn-w4"))
    for lost in (old.keys() - {"bert.encoder.layer.1.output.dense.weight"}, old):
        more = {"bert.encoder.layer.2.output.dense.weight": torch.ones(16, 24)} if lost is old else {}
        save_file({name: old[name] for name in lost} | more, path, {"format": "pt"})
        with pytest.raises(InputError):
            command.quantize(command_line(directory, "--out", str(directory.parent / "other")))


@pytest.mark.parametrize("which", ["AutoConfig", "AutoModelForCausalLM", "AutoTokenizer"])
def test_no_code_of_a_directory_runs(directory, monkeypatch, which):
    (directory / "own.py").write_text(f"open({str(directory.parent / 'ran')!r}, 'w')\nclass Own: pass\n")
    named = {"auto_map": {which: ["own.Own", None] if which == "AutoTokenizer" else "own.Own"}}
    config = {"model_type": {"AutoConfig": "own", "AutoTokenizer": "llama"}.get(which, "vit")}
    (directory / "config.json").write_text(json.dumps(config | named))
    if which == "AutoTokenizer":
        (directory / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "Own"} | named))
        (directory / "tokenizer.json").rename(directory / "vocab.json")
    monkeypatch.setattr("builtins.input", lambda _: "yes")
    with pytest.raises((InputError, ValueError)):
        command.quantize(command_line(directory))
    assert not (directory.parent / "ran").exists()


def test_layers_that_read_more_are_refused_before_learning(directory, monkeypatch):
    """As Zamba's, which also read the embeddings."""
    model, layer = modeling_qwen3.Qwen3Model.forward, modeling_qwen3.Qwen3DecoderLayer.forward

    def of_model(self, input_ids=None, inputs_embeds=None, **more):
        given = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        return model(self, inputs_embeds=given, embedded=given, **more)

    def of_layer(self, hidden_states, embedded=None, **more):
        return layer(self, hidden_states, **more) + embedded

    monkeypatch.setattr(modeling_qwen3.Qwen3Model, "forward", of_model)
    monkeypatch.setattr(modeling_qwen3.Qwen3DecoderLayer, "forward", of_layer)
    monkeypatch.setattr(command, "reconstruct", None)
    store(decoder("Qwen3"), directory)
    with pytest.raises(InputError, match="blocks="):
        command.quantize(command_line(directory))
    assert {path.name for path in directory.parent.iterdir()} == {"model", "text"}


def exported(directory, kind):
    out = directory.parent / kind
    given = ["export", str(directory.parent / "out"), "--format", kind, "--out", str(out)]
    command.export(command.parser().parse_args(given))
    return out


def test_what_was_quantized_is_exported_from_its_files(directory):
    symmetric = ("--recipe", "b-flexround-w4", "--set", "w_granularity=group")
    texts = {"generation_config.json": '{"eos_token_id": [2, 3], "top_p": 0.9}', "vocab.txt": "as older tokenizers"}
    for name, text in texts.items():
        (directory / name).write_text(text)
    command.quantize(command_line(directory, *symmetric, "--set", "group_size=8"))
    found = flexround.load(directory.parent / "out", llama())
    rows = command.calibration(directory, directory.parent / "text", 16, 12, 0)[:, 0]
    for kind in ("compressed-tensors", "torch"):
        again = transformers.AutoModelForCausalLM.from_pretrained(exported(directory, kind), dtype=torch.float32)
        torch.testing.assert_close(again(rows).logits, found(rows).logits, rtol=0, atol=1e-5)
        assert (directory.parent / kind / "tokenizer.json").is_file()
        assert {name: (directory.parent / kind / name).read_text() for name in texts} == texts
        card = (directory.parent / kind / "README.md").read_text()
        assert card.startswith("---\nbase_model: model\nbase_model_relation: quantized\nlibrary_name: transformers\n")
        assert "| layers.1 | weights | 4 | " in card, "the errors from the record"
        assert str(directory.parent) not in card
    whole = found.export("compressed-tensors", directory.parent / "whole")
    one, other = (load_file(path / "model.safetensors") for path in (whole, directory.parent / "compressed-tensors"))
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one), "as from memory"
    with pytest.raises(InputError, match="weights in groups"):
        exported(directory, "onnx")
    assert not (directory.parent / "onnx").exists()


def test_a_graph_is_exported_from_files(directory):
    command.quantize(command_line(directory, "--recipe", "b-flexround-w4"))
    found, rows = flexround.load(directory.parent / "out", llama()), words()
    out = exported(directory, "onnx")
    assert {"model.onnx", "config.json", "tokenizer.json"} <= {path.name for path in out.iterdir()}
    for ids in (rows, rows[:, :7]):
        assert np.abs(run_onnx(out / "model.onnx", ids) - found(ids).logits.detach().numpy()).max() < 1e-6


def test_a_preflight_writes_nothing_and_needs_no_padding_token(directory, capsys):
    """As Llama 3's: blocks of text are never padded."""
    path = directory / "tokenizer.json"
    path.write_text(path.read_text().replace("<pad>", "<|begin_of_text|>"))
    command.quantize(command_line(directory, "--preflight"))
    said = json.loads(capsys.readouterr().out)
    assert said["hours"] >= 0
    assert [kind for kind, word in said["exports"].items() if word == "possible"] == ["compressed-tensors", "onnx"]
    assert {path.name for path in directory.parent.iterdir()} == {"model", "text"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (["--samples", "99"], "--samples asks for 99"),
        (["--set", "itres=4"], "did you mean 'iters'"),
        (["--length", "13"], "supports at most 12"),
    ],
)
def test_a_wrong_command_is_one_message(directory, change, message):
    with pytest.raises((SettingsError, InputError), match=message):
        command.quantize(command_line(directory, *change))
    assert not (directory.parent / "out").exists()


def test_work_with_another_configuration_is_not_resumed(directory, monkeypatch):
    found, config = [], directory / "config.json"

    def opened(_, fingerprint):
        found.append(fingerprint)
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "State", opened)
    for eps in (1e-6, 1e-6, 1e-2):
        config.write_text(json.dumps(json.loads(config.read_text()) | {"rms_norm_eps": eps}))
        with pytest.raises(KeyboardInterrupt):
            command.quantize(command_line(directory))
    assert found[0] == found[1] != found[2]


def test_other_models_and_lost_files_are_refused(directory):
    (directory / "model.safetensors.index.json").unlink()
    with pytest.raises(InputError, match="model"):
        command.quantize(command_line(directory))
    (directory / "config.json").write_text('{"model_type": "vit"}')
    with pytest.raises(ValueError, match="ViTConfig"):
        command.quantize(command_line(directory))
    (directory / "config.json").unlink()
    with pytest.raises(InputError, match=r"config\.json: missing; give a directory"):
        command.quantize(command_line(directory))


def test_the_module_is_a_command_that_names_what_it_knows():
    command = [sys.executable, "-m", "flexround", "export", ".", "--out", "new", "--format", "onxx"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "invalid choice: 'onxx' (choose from" in done.stderr


def test_recipes_and_version_are_listed(capsys):
    arguments = command.parser().parse_args(["recipes"])
    arguments.run(arguments)
    assert re.search(r"^q-flexround-w4a4 +flexround +W4A4 +setting Q$", capsys.readouterr().out, re.MULTILINE)
    with pytest.raises(SystemExit):
        command.parser().parse_args(["--version"])
    assert re.fullmatch(r"\d+\.\d+\.\d+\n", capsys.readouterr().out)
