"""Hugging Face model directories: what is loaded, under which names, and what is refused."""

import json

import pytest
import tiny
import tokenizers
import torch
import toy
from safetensors.torch import save_file

from flexround.errors import InputError
from flexround.models import transformer
from flexround.models.pretrained import import_directory, load_pretrained

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


def test_the_body_alone_is_enough(tmp_path):
    source, target = tiny.make("bert"), tiny.make("bert", seed=2)
    source.bert.save_pretrained(tmp_path)  # names without the prefix "bert."
    load_pretrained(target, tmp_path)
    assert toy.same(target.bert.state_dict(), snapshot(source.bert))


def test_a_llama_needs_a_tokenizer_that_begins_its_texts(tmp_path):
    source, target = tiny.make("llama"), tiny.make("llama", seed=2)
    source.save_pretrained(tmp_path)
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<s>": 1, "</s>": 2, "a": 3}, "<s>"))
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(InputError, match="its begin of text"):
        import_directory(target, tmp_path, tmp_path / "out")
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "GPT2Tokenizer"}')  # SmolLM2's
    import_directory(target, tmp_path, tmp_path / "out")
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "LlamaTokenizer"}')
    with pytest.raises(InputError, match="its begin of text"):
        import_directory(target, tmp_path, tmp_path / "out")
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    import_directory(target, tmp_path, tmp_path / "out")
    assert toy.same(target.state_dict(), snapshot(source))
    assert tokenizers.Tokenizer.from_file(str(tmp_path / "out/tokenizer.json")).encode("").ids == [1]


# refusals


def refused(model, directory, *messages):
    with pytest.raises(InputError) as caught:
        load_pretrained(model, directory)
    for message in messages:
        assert message in str(caught.value)


SIZES = {"hidden_size": 32, "num_hidden_layers": 3, "hidden_act": "relu", "layer_norm_eps": 1e-5, "vocab_size": 51}
OTHER_ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}
GLOBAL = {"window_size": 4, "attention_types": [[["global"], 2]]}
OF_SIZES = ["hidden_size is 16, the settings say 32", "num_hidden_layers is 2, the settings say 3"]
OF_SIZES += ["hidden_act is 'gelu', the settings say 'relu'", "layer_norm_eps is 1e-12, the settings say 1e-05"]
OF_SIZES += ["vocab_size is 50, the settings say 51"]


@pytest.mark.parametrize(
    ("kind", "stored", "settings", "messages"),
    [
        ("llama", {"tie_word_embeddings": True}, {}, ["tie_word_embeddings is True, the settings say False"]),
        ("llama", {"num_key_value_heads": 1}, {}, ["num_key_value_heads is 1, the settings say 2"]),
        ("llama", {"rms_norm_eps": 1e-5}, {}, ["rms_norm_eps is 1e-05, the settings say 1e-06"]),
        ("llama", OTHER_ROPE, {}, ["rope_parameters is ", "500000"]),
        ("gpt_neo", {}, GLOBAL, ["attention_layers is ['global', 'local']", "window_size is 3"]),
        ("bert", {}, SIZES, OF_SIZES),
    ],
)
def test_a_network_of_other_settings_is_refused_with_all_differences(kind, stored, settings, messages, tmp_path):
    tiny.make(kind, **stored).save_pretrained(tmp_path)
    refused(tiny.make(kind, **settings), tmp_path, "config.json: ", *messages)
    if kind == "bert":
        refused(tiny.make("llama"), tmp_path, "config.json: model_type is 'bert', the settings say 'llama'")
    if settings is GLOBAL:  # another spelling of the same layers is no difference
        load_pretrained(tiny.make(kind, attention_types=[[["global"], 1], [["local"], 1]]), tmp_path)


def test_a_field_of_one_family_alone_is_compared_and_what_matters_in_training_alone_is_not(tmp_path):
    def granite(**fields):
        sizes = {"vocab_size": 50, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
        return transformer.auto("causal-lm", "granite", num_attention_heads=2, **sizes, **fields)

    granite(embedding_multiplier=12.0, attention_dropout=0.3, initializer_range=0.1).save_pretrained(tmp_path)
    refused(granite(), tmp_path, "config.json: embedding_multiplier is 12.0, the settings say 1.0;")
    load_pretrained(granite(embedding_multiplier=12.0), tmp_path)


DENSE = "bert.encoder.layer.1.output.dense.weight"


@pytest.mark.parametrize(
    ("kind", "name", "change", "message"),
    [
        ("bert", DENSE, lambda value: {}, "1 weights of this BertFor"),
        ("bert", DENSE, lambda value: {DENSE: value[:, :5].clone()}, "have another shape"),
        ("bert", DENSE, lambda value: {DENSE: value * torch.nan}, "holds NaN"),
        ("llama", "lm_head.weight", lambda value: {}, "1 weights of this LlamaForCausalLM are missing"),
    ],
)
def test_weights_must_be_whole(kind, name, change, message, tmp_path):
    source = tiny.make(kind)
    source.config.save_pretrained(tmp_path)
    state = source.state_dict()
    value = state.pop(name)
    save_file(state | change(value), tmp_path / WEIGHTS)
    refused(tiny.make(kind, seed=2), tmp_path, message, name)
