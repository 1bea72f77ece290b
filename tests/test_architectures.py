"""Networks that the suite has no adapter for are cut into blocks by their structure."""

import pytest
import torch
import torchvision
import transformers
from torch import nn

import flexround
from flexround.errors import InputError, SettingsError
from flexround.models import bert, gpt2, gpt_neo, llama, opt, structure, transformer
from flexround.models import blocks as protocol
from flexround.models.surgery.attention import SeparateAttention, separate_projections

FEW = {"iters": 2, "a_iters": 2, "batch": 2, "a_init_samples": 4, "progress": False, "device": "cpu"}
SIZES = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
SIZES |= {"intermediate_size": 48, "max_position_embeddings": 64}
GROUPS = SIZES | {"num_key_value_heads": 2, "pad_token_id": 0}
OPT = {name: value for name, value in SIZES.items() if name != "intermediate_size"}
OPT |= {"ffn_dim": 48, "word_embed_proj_dim": 32}
DISTIL = {"vocab_size": 64, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48}
BLOOM = {"vocab_size": 64, "hidden_size": 32, "n_layer": 2, "n_head": 4}
PATCHES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
PATCHES |= {"image_size": 32, "patch_size": 8}
SWIN = {"image_size": 32, "patch_size": 4, "embed_dim": 16, "depths": [1, 1], "num_heads": [2, 2], "window_size": 4}
TOKENS = {
    "Qwen2ForCausalLM": GROUPS,
    "Qwen3ForCausalLM": GROUPS | {"head_dim": 8},
    "MistralForCausalLM": GROUPS | {"sliding_window": 4},
    "Gemma2ForCausalLM": GROUPS | {"head_dim": 8, "sliding_window": 4},
    "Phi3ForCausalLM": GROUPS,
    "SmolLM3ForCausalLM": GROUPS,
    "GPTNeoXForCausalLM": SIZES,
    "BloomForCausalLM": BLOOM,  # its mask depends on the number of rows
    "RobertaForSequenceClassification": SIZES | {"max_position_embeddings": 70},
    "DistilBertForSequenceClassification": DISTIL,
    "ElectraForSequenceClassification": SIZES | {"embedding_size": 16},
    "DebertaV2ForSequenceClassification": SIZES,  # its layers give attention weights, too
    "ModernBertForSequenceClassification": SIZES | {"pad_token_id": 0},
}
IMAGES = {
    "ViTForImageClassification": (PATCHES, 4),
    "Dinov2ForImageClassification": (PATCHES, 4),
    "SwinForImageClassification": (SWIN, 4),
}


def build(name, sizes):
    """Return a small model of transformers."""
    torch.manual_seed(0)
    kind = getattr(transformers, name)
    return kind(kind.config_class(**sizes)).eval()


def padded(rows=6, length=12):
    """Return token ids and a mask of rows of several lengths."""
    ids = torch.randint(1, 64, (rows, length), generator=torch.Generator().manual_seed(0))
    mask = (torch.arange(length) < torch.arange(length - rows + 1, length + 1)[:, None]).long()
    return {"input_ids": ids * mask, "attention_mask": mask}


def logits(model, inputs):
    with torch.no_grad():
        return model(**inputs).logits if isinstance(inputs, dict) else model(inputs).logits


@pytest.mark.filterwarnings("ignore:in floating point")
@pytest.mark.parametrize("name", TOKENS)
def test_a_transformer_is_quantized_by_structure_with_padding_saved_and_loaded(name, tmp_path):
    inputs = padded()
    found = flexround.quantize(build(name, TOKENS[name]), inputs, "q-flexround-w8a8", **FEW)
    assert len(found.report) == 2
    assert all(record["learned"] and not record["nearest"] for record in found.report)
    loaded = flexround.load(found.save(tmp_path / "saved"), build(name, TOKENS[name]))
    assert torch.equal(logits(loaded, inputs), logits(found, inputs))


@pytest.mark.filterwarnings("ignore:in floating point")
@pytest.mark.parametrize("name", IMAGES)
def test_a_vision_transformer_is_cut_into_its_layers(name, tmp_path):
    sizes, blocks = IMAGES[name]
    images = torch.randn(6, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    found = flexround.quantize(build(name, sizes), images, "q-flexround-w8a8", **FEW)
    assert len(found.report) == blocks
    loaded = flexround.load(found.save(tmp_path / "saved"), build(name, sizes))
    assert torch.equal(logits(loaded, images), logits(found, images))


@pytest.mark.parametrize("padding", [False, True])
@pytest.mark.parametrize(
    ("made", "adapter"),
    [
        (lambda: transformer.llama("causal-lm", **GROUPS), llama.blocks),
        (lambda: transformer.opt("causal-lm", **OPT), opt.blocks),
        (lambda: transformer.gpt2("causal-lm", vocab_size=64, n_embd=32, n_layer=2, n_head=4), gpt2.blocks),
        (lambda: transformer.bert("classification", **SIZES), bert.blocks),
        (
            lambda: transformer.gpt_neo(
                "causal-lm", vocab_size=64, hidden_size=32, num_layers=2, num_heads=4, window_size=4,
                attention_types=[[["global", "local"], 1]],
            ),
            gpt_neo.blocks,
        ),
    ],
    ids=["llama", "opt", "gpt2", "bert", "gpt-neo"],
)  # fmt: skip
def test_layers_by_structure_compute_what_the_adapters_do(made, adapter, padding):
    model, inputs = made(), padded()
    tokens = torch.stack([inputs["input_ids"], torch.zeros_like(inputs["input_ids"])], 1)
    mask = inputs["attention_mask"].bool() if padding else None
    with torch.no_grad():
        found, wanted = (protocol.run(cut(model), tokens, mask) for cut in (structure.blocks, adapter))
        third = (
            structure.blocks(model)[1](found, mask),
            adapter(model)[1](found, mask),
        )  # the model has run no layer yet
    kept = slice(None) if mask is None else mask
    torch.testing.assert_close(found[kept], wanted[kept], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(third[0][kept], third[1][kept], rtol=1e-5, atol=1e-6)


def test_a_scale_file_names_any_model_type():
    model = transformer.auto("causal-lm", "qwen3", **GROUPS, head_dim=8)
    assert type(model).__name__ == "Qwen3ForCausalLM"
    assert len(structure.blocks(model)) == 2
    assert transformer.auto("classification", "modernbert", labels=3, **SIZES, pad_token_id=0).config.num_labels == 3
    for wrong, message in (
        ({"model_type": "qwen33"}, "model_type 'qwen33' \\(did you mean 'qwen3'"),
        ({"model_type": "qwen3", "hiden_size": 4}, "argument 'hiden_size' \\(did you mean 'hidden_size'"),
        ({"model_type": "vit"}, "head 'causal-lm'"),
    ):
        with pytest.raises(SettingsError, match=message):
            transformer.auto("causal-lm", **wrong)


class Wrapped(nn.Module):
    """Returns logits, as users' own modules do."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, ids):
        return self.inner(ids).logits


@pytest.mark.filterwarnings("ignore:in floating point")
def test_a_wrapper_of_a_decoder_is_cut_as_the_decoder_is():
    wrapped = Wrapped(build("Qwen2ForCausalLM", GROUPS))
    found = flexround.quantize(wrapped, padded()["input_ids"], "b-flexround-w4", **FEW)
    assert [record["block"] for record in found.report] == ["layers.0", "layers.1"]


def test_layers_that_read_more_than_the_one_before_are_refused_with_padding():
    sizes = {"vocab_size": 64, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}
    with pytest.raises(InputError, match=r"cut into encoder\.block\.0, encoder\.block\.1.*give blocks="):
        flexround.quantize(build("T5EncoderModel", sizes), padded(), "b-flexround-w4", **FEW)


def test_parallel_branches_are_one_block_however_little_the_outputs_differ():
    model = torchvision.models.googlenet(num_classes=10, aux_logits=False, init_weights=False).eval()
    found = flexround.quantize(model, torch.randn(4, 3, 64, 64), "b-rtn-w4", **FEW)
    assert sum(record["block"].startswith("inception") for record in found.report) == 9


MASKS = {
    "none": {},
    "padding": {"key_padding_mask": torch.arange(5).expand(3, 5) > 3},
    "bool": {"attn_mask": torch.ones(5, 5, dtype=torch.bool).triu(1)},
    "float": {"attn_mask": torch.randn(12, 5, 5)},
    "no weights": {"need_weights": False},
    "each head": {"average_attn_weights": False},
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize(
    "kind", [{"batch_first": True}, {}, {"batch_first": True, "bias": False}, {"kdim": 6, "vdim": 4}]
)
def test_separate_projections_compute_what_pytorch_s_attention_does(kind, mask):
    torch.manual_seed(0)
    attention = nn.MultiheadAttention(8, 4, **kind).eval()
    swap = (lambda x: x) if kind.get("batch_first") else (lambda x: x.transpose(0, 1))
    q, k, v = (swap(torch.randn(3, 5, size)) for size in (8, attention.kdim, attention.vdim))
    wanted, found = (module(q, k, v, **MASKS[mask]) for module in (attention, SeparateAttention(attention)))
    torch.testing.assert_close(found[0], wanted[0])
    assert (found[1] is None) == (wanted[1] is None) == (mask == "no weights")
    if wanted[1] is not None:
        torch.testing.assert_close(found[1], wanted[1])


def test_pytorch_s_own_encoder_has_its_projections_quantized():
    encoder = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2, enable_nested_tensor=False
    )
    x = torch.randn(16, 5, 8)
    found = flexround.quantize(encoder.eval(), x, "q-flexround-w8a8", **FEW)
    assert len(found.codes()) == 12
    assert [record["floating"] for record in found.report] == [[], []]
    with torch.no_grad():
        assert (found(x) - encoder(x)).abs().max() < 0.1
        separate_projections(encoder)
        assert (found(x) - encoder(x)).abs().max() > 0
