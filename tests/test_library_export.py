"""What other tools load: compressed-tensors by transformers, ONNX by onnxruntime, state dicts by PyTorch."""

import dataclasses
import functools
import json

import compressed_tensors
import numpy as np
import onnx
import onnxruntime
import pytest
import tiny
import torch
import transformers
from compressed_tensors.compressors import ModelCompressor
from own_networks import FEW, Pictures, llama, made, pictures, words
from safetensors.torch import load_file
from tensors import randn
from torch import nn
from transformers.pytorch_utils import Conv1D

import flexround
from flexround.errors import InputError, SettingsError
from flexround.mini import models as mini
from flexround.models.transformer import llama_blocks

SYMMETRIC = {"w_scheme": "symmetric"}


@pytest.mark.parametrize(
    ("build", "recipe", "settings", "format_"),
    [
        (llama, "b-flexround-w4", SYMMETRIC, "pack-quantized"),
        (llama, "b-flexround-w4", SYMMETRIC | {"w_granularity": "group", "group_size": 8}, "pack-quantized"),
        (llama, flexround.Recipe(setting="B", rounding="flexround", w_bits=8), SYMMETRIC, "pack-quantized"),
        (llama, "q-flexround-w8a8", {}, "int-quantized"),
        (llama, "b-flexround-w8a8", {}, "int-quantized"),  # activations in a phase, and so in a part, of their own
        (lambda: tiny.make("opt"), "q-flexround-w8a8", {}, "int-quantized"),  # steps per tensor
    ],
)
def test_transformers_computes_the_same_from_compressed_tensors(tmp_path, build, recipe, settings, format_):
    model, ids = build(), words()
    quantized = flexround.quantize(model, ids, recipe, **FEW | settings)
    directory = quantized.export("compressed-tensors", tmp_path / "out")
    again = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    wanted = quantized(ids).logits
    off = (again(ids).logits - wanted).abs().max()
    assert off < 1e-5
    assert off < 0.05 * (wanted - model(ids).logits).abs().max(), "the quantization shows"
    section = json.loads((directory / "config.json").read_text())["quantization_config"]
    assert section["format"] == format_
    inferred = ModelCompressor.from_pretrained_model(again).quantization_config.model_dump(mode="json")
    status = {"quantization_status": "compressed", "version": compressed_tensors.__version__}
    assert section == inferred | status, "as the package describes the network that it has loaded"
    if format_ == "pack-quantized":
        packed = load_file(directory / "model.safetensors")["model.layers.0.mlp.down_proj.weight_packed"]
        assert packed.dtype == torch.int32
        assert packed.numel() == 16 * 32 * quantized.recipe.w_bits // 32


def opened(path):
    """Return a session, and the kinds of the nodes that it runs."""
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(path.with_name("optimized.onnx"))
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return session, [node.op_type for node in onnx.load(options.optimized_model_filepath).graph.node]


def run_onnx(path, x):
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.x64quantprecision", "1")  # else products overflow without VNNI
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return session.run(None, {session.get_inputs()[0].name: x.numpy()})[0]


@pytest.mark.parametrize(
    ("build", "recipe"), [(mini.resnet18, "b-flexround-w4"), (lambda: made(Pictures), "q-flexround-w8a8")]
)
def test_onnxruntime_computes_the_same_from_onnx(tmp_path, build, recipe):
    model, x = build().eval(), pictures()
    quantized = flexround.quantize(model, x, recipe, **FEW | {"iters": 1})
    path = quantized.export("onnx", tmp_path / "out", x[:2]) / "model.onnx"
    graph = onnx.load(path).graph
    stored = {each.name: each.data_type for each in graph.initializer if each.name.endswith(".codes")}
    assert len(stored) == len(quantized.codes())
    assert set(stored.values()) == {onnx.TensorProto.INT8}
    assert b".py" not in path.read_bytes(), "no place in the files of this machine"
    wanted, full = quantized(x).detach().numpy(), model(x).detach().numpy()
    off = np.abs(run_onnx(path, x) - wanted).mean()
    assert off < (0.25 if quantized.sites else 1e-4) * np.abs(full - wanted).mean(), "a code may flip where one rounds"
    if quantized.sites:
        assert any(node.op_type == "QuantizeLinear" for node in graph.node)
        assert opened(path)[1].count("QLinearConv") >= 2, "integer kernels run"


@pytest.mark.parametrize("granularity", ["tensor", "channel"])
@pytest.mark.parametrize("kind", ["opt", "gpt2"])
def test_onnxruntime_computes_a_language_model(tmp_path, kind, granularity):
    """Linears of weights alone too, which it would compute from inputs of 8 bit. A LLaMA: test_library_command.py."""
    ids = words()
    quantized = flexround.quantize(tiny.make(kind), ids, "b-flexround-w4", **FEW, w_granularity=granularity)
    path = quantized.export("onnx", tmp_path / "out", ids[:2]) / "model.onnx"
    for rows in (ids, ids[:, :7]):
        assert np.abs(run_onnx(path, rows) - quantized(rows).logits.detach().numpy()).max() < 1e-6
    stored = [each for each in onnx.load(path).graph.initializer if each.name.endswith(".codes")]
    assert len(stored) == len(quantized.codes())
    assert {each.data_type for each in stored} == {onnx.TensorProto.UINT8}


def switched_off(gamma):
    """A network with a channel that a batch norm switches off."""
    model = made(Pictures)
    norm = model.stage[0].bn1
    norm.weight.data[3], norm.bias.data[3] = gamma, 2
    return model


def behind_a_pooling():
    """Likewise behind a pooling that onnxruntime computes in integers."""
    model = mini.resnet18().eval()
    norm = model.layer1[0].bn1
    norm.weight.data[3], norm.bias.data[3] = 1e-5, 2
    return model


def transposed(outputs):
    """Likewise of a linear with a transposed weight, square or not."""
    model = nn.Sequential(Conv1D(8, 8), nn.ReLU(), Conv1D(outputs, 8), nn.ReLU(), Conv1D(4, outputs)).eval()
    for seed, layer in enumerate(model[::2]):
        layer.weight.data = randn(*layer.weight.shape, seed=seed)
    model[2].weight.data[:, 3], model[2].bias.data[3] = 0, 2
    return model


@pytest.mark.parametrize("recipe", ["q-flexround-w8a8", "q-flexround-w4a8"])
@pytest.mark.parametrize(
    ("build", "x"),
    [
        *((functools.partial(switched_off, gamma), pictures()) for gamma in (0, 1e-6, 1e-5, 1e-4)),
        (behind_a_pooling, pictures()),
        *((functools.partial(transposed, outputs), randn(64, 8)) for outputs in (8, 12)),
    ],
)
def test_onnxruntime_adds_the_bias_of_a_channel_near_zero(tmp_path, build, x, recipe):
    quantized = flexround.quantize(build(), x, recipe, **FEW, w_granularity="channel")
    path = quantized.export("onnx", tmp_path / "out", x[:2]) / "model.onnx"
    wanted = quantized(x).detach().numpy()
    assert np.abs(run_onnx(path, x) - wanted).mean() < 0.02 * np.abs(wanted).mean()


def test_a_network_is_exported_in_its_type(tmp_path):
    whole, ids = flexround.quantize(llama(), words(), "b-rtn-w4", **FEW | SYMMETRIC), words()
    saved, wanted = whole.save(tmp_path / "saved"), whole.export("compressed-tensors", tmp_path / "whole")
    wanted, full = load_file(wanted / "model.safetensors"), whole(ids).logits.abs().max().item()
    for kind in (torch.float64, torch.float16, torch.bfloat16):
        quantized, out = flexround.load(saved, llama().to(kind)), tmp_path / str(kind)
        state = load_file(quantized.export("torch", out / "torch") / "model.safetensors")
        assert {value.dtype for value in state.values()} == {kind}
        directory = quantized.export("compressed-tensors", out / "packed")
        packed = load_file(directory / "model.safetensors")
        assert all(torch.equal(packed[key], wanted[key]) for key in packed if key.endswith("weight_packed"))
        again = transformers.AutoModelForCausalLM.from_pretrained(directory)
        assert again.dtype == kind
        limit = 4 * torch.finfo(kind).eps * full + 1e-6
        assert (again(ids).logits - quantized(ids).logits).abs().max() < limit
    path = quantized.export("onnx", tmp_path / "onnx", ids[:2]) / "model.onnx"
    assert np.abs(run_onnx(path, ids) - quantized(ids).logits.detach().float().numpy()).max() < limit, "of bfloat16"


def test_onnxruntime_computes_a_padded_bert_in_integers(tmp_path):
    model = tiny.make("bert", labels=3)
    torch.nn.init.normal_(model.classifier.weight, generator=torch.Generator().manual_seed(0))
    mask = (torch.arange(12) < torch.arange(16).remainder(9).add(4)[:, None]).long()
    rows = {"input_ids": words() * mask, "attention_mask": mask, "token_type_ids": torch.zeros_like(mask)}
    quantized = flexround.quantize(model, rows, "q-flexround-w8a8", **FEW)
    path = quantized.export("onnx", tmp_path / "out", {name: value[:2] for name, value in rows.items()}) / "model.onnx"
    session, kinds = opened(path)
    for length in (12, 7):  # rows of another length than the example's
        cut = {name: value[:, :length] for name, value in rows.items()}
        (found,) = session.run(None, {name: value.numpy() for name, value in cut.items()})
        wanted, full = (network(**cut).logits.detach().numpy() for network in (quantized, model))
        unmasked = quantized(**cut | {"attention_mask": torch.ones_like(cut["attention_mask"])}).logits.detach().numpy()
        off = np.abs(found - wanted).mean()
        assert off < 0.25 * np.abs(full - wanted).mean(), "a code may flip where one rounds"
        assert off < 0.01 * np.abs(unmasked - wanted).mean(), "the mask counts"
    assert kinds.count("MatMulIntegerToFloat") == 12


class OwnLinear(nn.Linear):
    """As Falcon's; another class takes its place where transformers reads compressed tensors."""

    def forward(self, x):
        return x @ self.weight.T


def with_own_linear():
    model = llama()
    model.model.layers[1].mlp.down_proj.__class__ = OwnLinear
    return model


@pytest.mark.parametrize(
    ("build", "data", "recipe", "settings", "kind", "message"),
    [
        (llama, words, "b-flexround-w4", {}, "compressed-tensors", "asymmetric grid.*w_scheme='symmetric'"),
        (llama, words, "b-flexround-w3", SYMMETRIC, "compressed-tensors", "weights of 3 bit"),
        (with_own_linear, words, "b-rtn-w4", SYMMETRIC, "compressed-tensors", "down_proj is a OwnLinear"),
        (llama, words, "q-flexround-w4a8", SYMMETRIC, "compressed-tensors", "W4A8"),
        (lambda: made(Pictures), pictures, "b-flexround-w4", {}, "compressed-tensors", "Pictures is no model of trans"),
        (lambda: made(Pictures), pictures, "q-flexround-w4a4", {}, "onnx", "activations of 4 bit per tensor"),
        (
            lambda: made(Pictures),
            pictures,
            "q-flexround-w8a8",
            {"head_input_bits": 4},
            "onnx",
            "head.*activations of 4 bit",
        ),
        (
            llama,
            words,
            "q-flexround-w8a8",
            {"head_input_bits": 4},
            "compressed-tensors",
            "activations of 4 bit, the form",
        ),
        (lambda: made(Pictures), pictures, "q-flexround-w4a4", {}, "torch", "no place for quantized activations"),
    ],
)
def test_what_a_format_can_t_hold_is_refused(tmp_path, build, data, recipe, settings, kind, message):
    quantized = flexround.quantize(build(), data(), recipe, **FEW | {"iters": 1, "a_iters": 1} | settings)
    example = [data(2)] if kind == "onnx" else []
    with pytest.raises(InputError, match=message):
        quantized.export(kind, tmp_path / "out", *example)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("left_out", "name"), [(0, "layers.1.self_attn.q_proj"), (3, "layers.0.mlp.down_proj")])
def test_linears_without_a_site_stay_floating_or_are_refused(tmp_path, left_out, name):
    def blocks(model):
        found = llama_blocks(model)
        without = [block.sites[:left_out] + block.sites[left_out + 1 :] for block in found]
        return [dataclasses.replace(block, sites=sites) for block, sites in zip(found, without, strict=True)]

    ids = words()
    quantized = flexround.quantize(llama(), ids, "q-flexround-w8a8", **FEW, blocks=blocks)
    with pytest.raises(InputError, match=rf"input of model\.layers\.\d\.{name[9:]} is in floating.*a site in blocks="):
        quantized.export("compressed-tensors", tmp_path / "packed")
    path = quantized.export("onnx", tmp_path / "out", ids[:2]) / "model.onnx"
    nodes = onnx.load(path).graph.node
    (codes,) = [node for node in nodes if f"model.{name}.parametrizations.weight.0.codes" in node.input]
    assert "Reshape" in {node.op_type for node in nodes if codes.output[0] in node.input}, (
        "of an input in floating point"
    )


def test_a_state_dict_is_that_of_the_folded_network(tmp_path):
    quantized = flexround.quantize(made(Pictures), pictures(), "b-rtn-w4", **FEW)
    state = load_file(quantized.export("torch", tmp_path / "state") / "model.safetensors")
    assert torch.equal(state["stage.0.conv1.weight"], quantized.codes()["stage.0.conv1"].values())
    with pytest.raises(SettingsError, match="did you mean 'onnx'"):
        quantized.export("onxx", tmp_path / "out")
    with pytest.raises(InputError, match="give example="):
        quantized.export("onnx", tmp_path / "out")
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(InputError, match="not empty"):
        quantized.export("torch", tmp_path)
