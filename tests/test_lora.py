"""Merging the adapters of microsoft/LoRA's release into GPT-2."""

import copy

import tiny
import torch

from flexround.jobs.runs import FinetuneJob
from flexround.models.weights import merge_checkpoint
from flexround.settings import layout
from flexround.settings.schema import Checkpoint, TaskSpec
from flexround.settings.sources import Source
from flexround.stages import finetune
from synthetic import tokenizers

WIDTH, LAYERS, RANK = 8, 3, 2
NAME = "module.transformer.h.{}.attn.c_attn.lora_{}"
MODEL = {"factory": "flexround.models.transformer:gpt2", "blocks": "flexround.models.transformer:gpt2_blocks"}


def make(**config):
    return tiny.make("gpt2", **{"n_embd": WIDTH, "n_layer": LAYERS} | config)


def adapter(layers=LAYERS, width=WIDTH, rank=RANK):
    generator, state = torch.Generator().manual_seed(0), {}
    for i in range(layers):
        state[NAME.format(i, "A")] = torch.randn(2 * rank, width, generator=generator)
        state[NAME.format(i, "B")] = torch.randn(2 * width, rank, generator=generator)
    return state


def write(path, state):
    torch.save({"model_state_dict": state}, path)
    return path


def test_merged_weights_are_loralibs_and_nothing_else_changes(tmp_path):
    model, state = make(), adapter()
    before = copy.deepcopy(model.state_dict())
    merge_checkpoint(model, write(tmp_path / "adapter.pt", state))
    for name, new in model.state_dict().items():
        expected = before[name].clone()
        if name.endswith("c_attn.weight"):
            a, b = (state[NAME.format(name.split(".")[2], part)] for part in "AB")
            # loralib: a grouped convolution of A by B, its rows put where query and value are
            change = torch.nn.functional.conv1d(a[None], b[:, :, None], groups=2)[0]
            expected[:, :WIDTH] += 16.0 * change[:WIDTH].T
            expected[:, 2 * WIDTH :] += 16.0 * change[WIDTH:].T
            assert torch.equal(new[:, WIDTH : 2 * WIDTH], expected[:, WIDTH : 2 * WIDTH])
        torch.testing.assert_close(new, expected, rtol=0, atol=1e-5 if name.endswith("c_attn.weight") else 0)


def test_an_import_merges_the_adapter_into_its_base(tmp_path, monkeypatch):
    monkeypatch.setattr(layout, "SOURCES", tmp_path)
    base, state = make(vocab_size=300), adapter()
    base.save_pretrained(tmp_path / "base")
    tokenizers.train(["a"], "bpe", 300).save(str(tmp_path / "base/tokenizer.json"))
    write(tmp_path / "adapter.pt", state)
    common = {"kind": "checkpoint", "location": "a test", "revision": "1", "licence": "none"}
    files = ["config.json", "tokenizer.json", "model.safetensors"]
    origins = {"base": Source(**common, file="base", files=files), "change": Source(**common, file="adapter.pt")}
    loader = "flexround.models.pretrained:import_directory"
    checkpoint = Checkpoint(model=MODEL, source="base", loader=loader, adapter="change")
    imported = make(seed=2, vocab_size=300)
    (tmp_path / "out").mkdir()
    places = {"data": None, "pretrained": None, "out": tmp_path / "out"}
    job = FinetuneJob(
        names=("a", "b", "c"), task=TaskSpec(module="a:B"), checkpoint=checkpoint, train=None, origins=origins, **places
    )
    finetune.import_source(job, imported)
    merge_checkpoint(base, tmp_path / "adapter.pt")
    assert all(torch.equal(value, imported.state_dict()[name]) for name, value in base.state_dict().items())
