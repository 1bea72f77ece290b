"""Hugging Face model directories: what is loaded, under which names, and what is refused."""

import json
import shutil

import pytest
import tokenizers
import torch
from safetensors.torch import save_file

from flexround.errors import InputError
from flexround.models import transformer
from flexround.models.pretrained import import_directory, load_pretrained

SMALL = {"vocab_size": 50, "hidden_size": 16, "max_position_embeddings": 12}
BERT = SMALL | {"num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
NEO = SMALL | {
    "num_layers": 2,
    "num_heads": 2,
    "attention_types": [[["global", "local"], 1]],
    "window_size": 3,
    "pad_token_id": 0,
}
LLAMA = SMALL | {"num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
FACTORIES = {
    "bert": (transformer.bert, BERT),
    "gpt_neo": (transformer.gpt_neo, NEO),
    "llama": (transformer.llama, LLAMA),
}


def make(kind, head="classification", seed=0, **config):
    factory, standard = FACTORIES[kind]
    return factory(head, seed=seed, **standard | config)


def snapshot(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def unchanged(model, before):
    return all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.fixture
def bert_directory(tmp_path):
    model = make("bert", seed=1)
    model.config.save_pretrained(tmp_path)
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    return tmp_path


@pytest.mark.parametrize("form", ["safetensors", "safetensors shards", "bin", "bin shards"])
@pytest.mark.parametrize("kind", ["bert", "gpt_neo"])
def test_every_form_is_loaded(kind, form, tmp_path):
    source, target = make(kind, seed=1), make(kind, seed=2)
    source.config.save_pretrained(tmp_path)
    save, name = (save_file, "model.safetensors") if "safe" in form else (torch.save, "pytorch_model.bin")
    state = snapshot(source)
    if "shards" in form:
        parts = {f"{i}-of-2": dict(list(state.items())[i::2]) for i in range(2)}
        for part, values in parts.items():
            save(values, tmp_path / part)
        index = {"weight_map": {key: part for part, values in parts.items() for key in values}}
        (tmp_path / f"{name}.index.json").write_text(json.dumps(index))
    else:
        save(state, tmp_path / name)
    assert not unchanged(target, state)
    load_pretrained(target, tmp_path)
    assert unchanged(target, state)


def test_a_saved_pretrained_model_gets_a_fresh_head_named_in_the_log(tmp_path, caplog):
    source, target = make("bert", "span", seed=1), make("bert", seed=2, labels=3)
    source.save_pretrained(tmp_path)
    before, body = snapshot(target), snapshot(source)
    torch.manual_seed(5)
    state = torch.get_rng_state()
    with caplog.at_level("INFO", "flexround"):
        load_pretrained(target, tmp_path)
    assert torch.equal(torch.get_rng_state(), state)
    heads = ("classifier.", "bert.pooler.")
    for name, value in target.state_dict().items():
        assert torch.equal(value, before[name] if name.startswith(heads) else body[name]), name
    assert "classifier.bias, classifier.weight" in caplog.text
    assert "bert.pooler.dense.bias" in caplog.text


def test_tied_weights_of_language_models(tmp_path):
    source, target = make("gpt_neo", "causal-lm", seed=1), make("gpt_neo", "causal-lm", seed=2)
    source.save_pretrained(tmp_path)  # without the tied lm_head
    load_pretrained(target, tmp_path)
    assert unchanged(target, snapshot(source))
    assert target.lm_head.weight is target.transformer.wte.weight


def test_a_llama_is_loaded_with_its_own_head(tmp_path):
    source, target = make("llama", "causal-lm", seed=1), make("llama", "causal-lm", seed=2)
    source.half().save_pretrained(tmp_path, max_shard_size="2KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 1
    load_pretrained(target, tmp_path)
    assert unchanged(target, {name: value.float() for name, value in source.state_dict().items()})
    assert not torch.equal(target.lm_head.weight, target.model.embed_tokens.weight)


def test_a_language_model_without_its_head_is_refused(tmp_path):
    source, target = make("llama", "causal-lm", seed=1), make("llama", "causal-lm", seed=2)
    source.config.save_pretrained(tmp_path)
    save_file({k: v for k, v in source.state_dict().items() if k != "lm_head.weight"}, tmp_path / "model.safetensors")
    before = snapshot(target)
    with pytest.raises(InputError, match=r"1 weights of this LlamaForCausalLM are missing.*lm_head\.weight"):
        load_pretrained(target, tmp_path)
    assert unchanged(target, before)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tie_word_embeddings": True}, "tie_word_embeddings is True, the settings say False"),
        ({"num_key_value_heads": 1}, "num_key_value_heads is 1, the settings say 2"),
        ({"rms_norm_eps": 1e-5}, "rms_norm_eps is 1e-05, the settings say 1e-06"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}, "rope_parameters is .*500000"),
    ],
)
def test_another_llama_is_refused(change, message, tmp_path):
    make("llama", "causal-lm", **change).save_pretrained(tmp_path)
    with pytest.raises(InputError, match=rf"config\.json: {message}"):
        load_pretrained(make("llama", "causal-lm"), tmp_path)


def test_a_llama_needs_a_tokenizer_that_begins_its_texts(tmp_path):
    source, target = make("llama", "causal-lm", seed=1), make("llama", "causal-lm", seed=2)
    source.save_pretrained(tmp_path)
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<s>": 1, "</s>": 2}, "<s>"))
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(InputError, match="its begin of text"):
        import_directory(target, tmp_path, tmp_path / "out")
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    import_directory(target, tmp_path, tmp_path / "out")
    assert unchanged(target, snapshot(source))
    assert tokenizers.Tokenizer.from_file(str(tmp_path / "out/tokenizer.json")).encode("").ids == [1]


def test_a_head_for_other_labels_stays_fresh(tmp_path):
    source, target = make("bert", seed=1, labels=3), make("bert", seed=2, labels=2)
    source.save_pretrained(tmp_path)
    before = snapshot(target)
    load_pretrained(target, tmp_path)
    assert torch.equal(target.classifier.weight, before["classifier.weight"])
    assert torch.equal(target.bert.pooler.dense.weight, source.bert.pooler.dense.weight)


@pytest.mark.parametrize("kind", ["bert", "gpt_neo"])
def test_legacy_names_and_leftover_buffers(kind, tmp_path):
    """BERT's first files say gamma and beta and lack no prefix; GPT-Neo's hold its causal masks."""
    source, target = make(kind, seed=1), make(kind, seed=2)
    source.config.save_pretrained(tmp_path)
    state = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): value + 1
        for name, value in snapshot(source).items()
    }
    if kind == "gpt_neo":
        state |= {
            "transformer.h.0.attn.attention.bias": torch.ones(1),
            "transformer.h.0.attn.attention.masked_bias": torch.ones(1),
        }
    torch.save(state, tmp_path / "pytorch_model.bin")
    load_pretrained(target, tmp_path)
    assert unchanged(target, {name: value + 1 for name, value in snapshot(source).items()})


def test_the_body_alone_is_enough(tmp_path):
    source, target = make("bert", seed=1), make("bert", seed=2)
    source.bert.save_pretrained(tmp_path)  # names without the prefix "bert."
    load_pretrained(target, tmp_path)
    assert unchanged(target.bert, snapshot(source.bert))


def test_all_differences_are_one_message(bert_directory):
    model = make("bert", hidden_size=32, num_hidden_layers=3, hidden_act="relu", layer_norm_eps=1e-5, vocab_size=51)
    before = snapshot(model)
    with pytest.raises(InputError) as error:
        load_pretrained(model, bert_directory)
    for part in (
        "hidden_size is 16, the settings say 32",
        "num_hidden_layers is 2, the settings say 3",
        "hidden_act is 'gelu', the settings say 'relu'",
        "layer_norm_eps is 1e-12, the settings say 1e-05",
        "vocab_size is 50, the settings say 51",
    ):
        assert part in str(error.value)
    assert "num_attention_heads" not in str(error.value)
    assert unchanged(model, before)


def test_windows_and_attention_types_matter(tmp_path):
    make("gpt_neo").save_pretrained(tmp_path)
    other = make("gpt_neo", window_size=4, attention_types=[[["global"], 2]])
    with pytest.raises(InputError, match=r"attention_layers is \['global', 'local'\].*window_size is 3"):
        load_pretrained(other, tmp_path)
    # another spelling of the same layers
    load_pretrained(make("gpt_neo", attention_types=[[["global"], 1], [["local"], 1]]), tmp_path)


def test_another_architecture_is_refused(bert_directory):
    for kind, head in (("gpt_neo", "classification"), ("llama", "causal-lm")):
        with pytest.raises(InputError, match=rf"config\.json: model_type is 'bert', the settings say '{kind}'"):
            load_pretrained(make(kind, head), bert_directory)


WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"config.json": None}, r"config\.json: missing"),
        ({"config.json": "{"}, r"config\.json: not a model's configuration"),
        ({"config.json": "{}"}, r"config\.json: not a model's configuration"),
        (
            {"config.json": '{"model_type": "bert", "hidden_size": "16"}'},
            r"config\.json: not a model's configuration.*hidden_size",
        ),
        ({WEIGHTS: None}, r"neither model\.safetensors nor pytorch_model\.bin"),
        ({WEIGHTS: "cut"}, r"model\.safetensors: not a whole safetensors file"),
        ({WEIGHTS: None, "pytorch_model.bin.index.json": '{"weight_map": {"a": "one.bin"}}'}, r"one\.bin: missing"),
        ({WEIGHTS: None, INDEX: "[]"}, r"index\.json: not an index of shards"),
    ],
    ids=["no config", "no json", "no type", "wrong value", "no weights", "cut", "no shard", "no index"],
)
def test_bad_directories_are_refused(files, message, bert_directory):
    for name, content in files.items():
        if content is None:
            (bert_directory / name).unlink()
        else:
            (bert_directory / name).write_text(content)
    model = make("bert")
    before = snapshot(model)
    with pytest.raises(InputError, match=f"(?s){message}"):
        load_pretrained(model, bert_directory)
    assert unchanged(model, before)


@pytest.mark.parametrize("change", ["missing", "shape", "nan"])
def test_weights_of_the_body_must_be_whole(change, bert_directory):
    state = make("bert", seed=1).state_dict()
    name = "bert.encoder.layer.1.output.dense.weight"
    if change == "missing":
        del state[name]
    elif change == "shape":
        state[name] = state[name][:, :5].clone()
    else:
        state[name][0, 0] = float("nan")
    save_file(state, bert_directory / "model.safetensors")
    model = make("bert")
    before = snapshot(model)
    with pytest.raises(InputError, match=name.replace(".", r"\.")):
        load_pretrained(model, bert_directory)
    assert unchanged(model, before)


def test_an_index_leads_to_no_other_directory(bert_directory):
    outside = bert_directory / "outside"
    outside.mkdir()
    shutil.move(bert_directory / "model.safetensors", outside / "part")
    inside = bert_directory / "inside"
    inside.mkdir()
    shutil.copy(bert_directory / "config.json", inside)
    (inside / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "../outside/part"}}))
    with pytest.raises(InputError, match=r"inside/part"):
        load_pretrained(make("bert"), inside)
