"""Hugging Face model directories: what is loaded, under which names, and what is refused."""

import json

import pytest
import tiny
import torch
import toy
from safetensors.torch import save_file

from flexround.errors import InputError
from flexround.models.pretrained import load_pretrained

WEIGHTS = "model.safetensors"


def snapshot(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


@pytest.mark.parametrize(
    ("kind", "form"),
    [("gpt_neo", "safetensors"), ("bert", "safetensors shards"), ("bert", "bin"), ("gpt_neo", "bin shards")],
)
def test_every_form_is_loaded(kind, form, tmp_path):
    """With legacy names in pickles: BERT's first files say gamma and beta; GPT-Neo's hold its causal masks."""
    source, target = (tiny.make(kind, "classification", seed) for seed in (1, 2))
    source.config.save_pretrained(tmp_path)
    save, name = (save_file, WEIGHTS) if "safe" in form else (torch.save, "pytorch_model.bin")
    state = wanted = {name: value + 1 for name, value in source.state_dict().items()}
    if "bin" in form:
        state = {
            name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): value
            for name, value in wanted.items()
        }
        if kind == "gpt_neo":
            state |= {f"transformer.h.0.attn.attention.{name}": torch.ones(1) for name in ("bias", "masked_bias")}
    if "shards" in form:
        parts = {f"{i}-of-2.{form.split()[0]}": dict(list(state.items())[i::2]) for i in range(2)}
        for part, values in parts.items():
            save(values, tmp_path / part)
        index = {"metadata": {}, "weight_map": {key: part for part, values in parts.items() for key in values}}
        (tmp_path / f"{name}.index.json").write_text(json.dumps(index))
    else:
        save(state, tmp_path / name)
    load_pretrained(target, tmp_path)
    assert toy.same(target.state_dict(), wanted)


@pytest.mark.parametrize("kind", ["gpt_neo", "llama"])
def test_language_models_come_with_their_head_tied_or_not(kind, tmp_path):
    source, target = tiny.make(kind), tiny.make(kind, seed=2)
    source.half().save_pretrained(tmp_path, max_shard_size="2KB")  # of GPT-Neo without the tied lm_head
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 1
    load_pretrained(target, tmp_path)
    assert toy.same(target.state_dict(), {name: value.float() for name, value in source.state_dict().items()})
    assert torch.equal(target.lm_head.weight, target.get_input_embeddings().weight) == (kind == "gpt_neo")


@pytest.mark.parametrize(
    ("head", "labels", "fresh", "named"),
    [
        ("span", 3, ("classifier.", "bert.pooler."), ["classifier.bias, classifier.weight", "bert.pooler.dense.bias"]),
        ("classification", 2, ("classifier.",), []),
    ],
    ids=["another head", "other labels"],
)
def test_a_pretrained_model_gets_a_fresh_head(head, labels, fresh, named, tmp_path, caplog):
    source, target = tiny.make("bert", head), tiny.make("bert", seed=2, labels=labels)
    if head == "classification":
        source = tiny.make("bert", head, labels=3)
    source.save_pretrained(tmp_path)
    before, body = snapshot(target), snapshot(source)
    torch.manual_seed(5)
    state = torch.get_rng_state()
    with caplog.at_level("INFO", "flexround"):
        load_pretrained(target, tmp_path)
    assert torch.equal(torch.get_rng_state(), state)
    for name, value in target.state_dict().items():
        assert torch.equal(value, before[name] if name.startswith(fresh) else body[name]), name
    assert all(text in caplog.text for text in named)


# refusals


@pytest.mark.parametrize(
    ("kind", "stored", "settings", "messages"),
    [
        ("llama", {"tie_word_embeddings": True}, {}, ["tie_word_embeddings is True, the settings say False"]),
        (
            "gpt_neo",
            {},
            {"window_size": 4, "attention_types": [[["global"], 2]]},
            ["attention_layers", "window_size is 3"],
        ),
        ("bert", {}, {"hidden_size": 32, "layer_norm_eps": 1e-5}, ["hidden_size is 16, the settings say 32", "1e-05"]),
    ],
)
def test_other_settings_are_refused_with_all_differences(kind, stored, settings, messages, tmp_path):
    tiny.make(kind, **stored).save_pretrained(tmp_path)
    with pytest.raises(InputError) as caught:
        load_pretrained(tiny.make(kind, **settings), tmp_path)
    assert all(message in str(caught.value) for message in ("config.json: ", *messages))
    if kind == "gpt_neo":  # another spelling of the same layers is no difference
        load_pretrained(tiny.make(kind, attention_types=[[["global"], 1], [["local"], 1]]), tmp_path)


@pytest.mark.parametrize(("change", "message"), [(None, "1 weights of this BertFor"), (torch.nan, "holds NaN")])
def test_weights_must_be_whole(change, message, tmp_path):
    source, name = tiny.make("bert"), "bert.encoder.layer.1.output.dense.weight"
    source.config.save_pretrained(tmp_path)
    state = source.state_dict()
    value = state.pop(name)
    save_file(state | ({} if change is None else {name: value * change}), tmp_path / WEIGHTS)
    with pytest.raises(InputError, match=message):
        load_pretrained(tiny.make("bert", seed=2), tmp_path)
