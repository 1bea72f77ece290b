"""Networks that the suite has no adapter for are cut into blocks by their structure."""

import pytest
import tiny
import torch
import torchvision
import transformers
from test_text_blocks import cut as adapter
from torch import nn

import flexround
from flexround.errors import InputError, SettingsError
from flexround.library import auto_blocks
from flexround.library.block_check import CLOSE, check
from flexround.models import blocks as protocol
from flexround.models import structure, transformer
from flexround.models.surgery.attention import SeparateAttention, separate_projections
from flexround.models.tensors import apart
from flexround.tasks.protocol import Inputs

FEW = {"iters": 1, "a_iters": 1, "batch": 2, "a_init_samples": 4, "progress": False, "device": "cpu"}
SIZES = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
SIZES |= {"intermediate_size": 48, "max_position_embeddings": 64}
GROUPS = SIZES | {"num_key_value_heads": 2, "pad_token_id": 0}
HEADS = GROUPS | {"head_dim": 8}
SWIN = {"image_size": 32, "patch_size": 4, "embed_dim": 16, "depths": [1, 1], "num_heads": [2, 2], "window_size": 4}
KINDS = {  # sizes of a small model, and how many blocks it is cut into
    "Qwen3ForCausalLM": (HEADS, 2),
    "Gemma2ForCausalLM": (HEADS | {"sliding_window": 4}, 2),
    "BloomForCausalLM": ({"vocab_size": 64, "hidden_size": 32, "n_layer": 2, "n_head": 4}, 2),  # its mask has rows
    "RobertaForSequenceClassification": (SIZES | {"max_position_embeddings": 70}, 2),
    "DebertaV2ForSequenceClassification": (SIZES, 2),  # its layers give attention weights, too
    "ModernBertForSequenceClassification": (SIZES | {"pad_token_id": 0}, 2),
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


@pytest.mark.filterwarnings("ignore:in floating point")
@pytest.mark.parametrize("name", KINDS)
@torch.no_grad()
def test_a_transformer_is_quantized_saved_and_loaded(name, tmp_path):
    sizes, blocks = KINDS[name]
    images = torch.randn(6, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    inputs = {"pixel_values": images} if "ForImage" in name else padded()
    found = flexround.quantize(build(name, sizes), inputs, "q-flexround-w8a8", **FEW | {"lr": 2e-2})
    assert len(found.report) == blocks
    assert all(record["learned"] and not record["nearest"] for record in found.report)
    loaded = flexround.load(found.save(tmp_path / "saved"), build(name, sizes))
    assert torch.equal(loaded(**inputs).logits, found(**inputs).logits)


@pytest.mark.parametrize("padding", [False, True])
@pytest.mark.parametrize("kind", tiny.SIZES)
def test_layers_by_structure_compute_what_the_adapters_do(kind, padding):
    model, inputs = tiny.make(kind), padded()
    ids = inputs["input_ids"] % 50
    tokens = torch.stack([ids, torch.zeros_like(ids)], 1)
    mask = inputs["attention_mask"].bool() if padding else None
    kept = slice(None) if mask is None else mask
    with torch.no_grad():
        found, wanted = (protocol.run(cut(model), tokens, mask) for cut in (structure.blocks, adapter))
        second, other = (cut(model)[1](found, mask) for cut in (structure.blocks, adapter))  # no layer has run before
    torch.testing.assert_close(found[kept], wanted[kept], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(second[kept], other[kept], rtol=1e-5, atol=1e-6)


def test_a_scale_file_names_any_model_type():
    model = transformer.auto("causal-lm", "qwen3", **HEADS)
    assert type(model).__name__ == "Qwen3ForCausalLM"
    assert len(structure.blocks(model)) == 2
    assert transformer.auto("classification", "modernbert", labels=3, **SIZES, pad_token_id=0).config.num_labels == 3
    with pytest.raises(SettingsError, match="argument 'hiden_size' \\(did you mean 'hidden_size'"):
        transformer.auto("causal-lm", "qwen3", hiden_size=4)


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


def test_a_layer_that_a_transformer_runs_again_is_no_block():
    model = build("AlbertForSequenceClassification", SIZES | {"embedding_size": 16, "num_hidden_layers": 3})
    ids = padded()["input_ids"]
    with pytest.raises(InputError, match=r"runs its block albert_layer_groups\.0 twice"):
        check(model, structure.blocks(model), Inputs(torch.stack([ids, ids * 0], 1)), ids.device)
    found = flexround.quantize(model, ids, "b-rtn-w4", **FEW)
    assert [record["block"] for record in found.report] == ["albert.encoder", "albert.pooler"]
    with pytest.raises(InputError, match=r"cut into albert\.encoder, albert\.pooler it computes something else"):
        flexround.quantize(model, padded(), "b-rtn-w4", **FEW)


class SequenceFirst(nn.Module):
    """Its layers read (L, N, 8)."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 4)
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16), 2)

    def forward(self, x):
        return self.last(self.encoder(self.first(x).transpose(0, 1)).transpose(0, 1)[:, 0])


@pytest.mark.filterwarnings("ignore:SequenceFirst is one block")
@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize("length", [1, 2, 6])
def test_samples_outside_the_first_dimension_stay_inside_a_block(length):
    model, x = SequenceFirst().eval(), torch.randn(8, length, 8)
    found = flexround.quantize(model, x, flexround.Recipe(setting="B", rounding="rtn", w_bits=8), **FEW | {"batch": 4})
    assert [record["block"] for record in found.report] == ["network"]
    with pytest.raises(InputError, match="a block needs the samples in the first dimension"):
        flexround.quantize(model, x, "b-rtn-w4", blocks=["first", "encoder", "last"], **FEW)


def test_layers_that_read_more_are_refused_with_padding():
    sizes = {"vocab_size": 64, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}
    with pytest.raises(InputError, match=r"cut into encoder\.block\.0, encoder\.block\.1.*give blocks="):
        flexround.quantize(build("T5EncoderModel", sizes), padded(), "b-flexround-w4", **FEW)


def test_parallel_branches_are_one_block():
    model = torchvision.models.googlenet(num_classes=10, aux_logits=False, init_weights=False).eval()
    found = flexround.quantize(model, torch.randn(2, 3, 32, 32), "b-rtn-w4", **FEW)  # faint
    assert sum(record["block"].startswith("inception") for record in found.report) == 9


@torch.no_grad()
def test_a_shortcut_added_in_place_stays_inside_its_block():
    """The network writes on what a part gave (``result += input``), which hid that it reads something earlier."""
    torch.manual_seed(0)
    model = torchvision.models.mobilenet_v3_small(num_classes=10).eval()
    x = torch.randn(4, 3, 32, 32)
    blocks = auto_blocks.automatic(model, x)
    names = {block.name for block in blocks}
    shortcuts = {name for name, module in model.named_modules() if getattr(module, "use_res_connect", False)}
    assert len(shortcuts) >= 5
    assert shortcuts <= names
    kept, given = protocol.run(blocks[:10], x), protocol.run(blocks[:10], x)
    protocol.run(blocks[10:], given)
    assert torch.equal(kept, given), "nobody writes on the activations of a block"
    assert apart(protocol.run(blocks, x), model(x)) < CLOSE


def test_a_value_not_finite_in_one_output_is_a_difference():
    x = torch.tensor([1.0, torch.nan, torch.inf])
    assert apart(x, x) == 0
    assert apart(x, torch.tensor([1.0, 2.0, torch.inf])) == torch.inf
    assert apart(torch.tensor([1.0, 2.0, torch.inf]), x) == torch.inf


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
def test_separate_projections_compute_pytorch_s_attention(kind, mask):
    torch.manual_seed(0)
    attention = nn.MultiheadAttention(8, 4, **kind).eval()
    shape = (3, 5) if kind.get("batch_first") else (5, 3)
    q, k, v = (torch.randn(*shape, size) for size in (8, attention.kdim, attention.vdim))
    wanted, found = (module(q, k, v, **MASKS[mask]) for module in (attention, SeparateAttention(attention)))
    torch.testing.assert_close(found[0], wanted[0])
    assert (found[1] is None) == (wanted[1] is None) == (mask == "no weights")
    if wanted[1] is not None:
        torch.testing.assert_close(found[1], wanted[1])


def test_pytorch_s_own_encoder_has_its_projections_quantized():
    torch.manual_seed(0)
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2)
    x, padding = torch.randn(16, 5, 8), torch.arange(5).expand(16, 5) > 3
    found = flexround.quantize(encoder.eval(), x, "q-flexround-w8a8", **FEW)
    assert len(found.codes()) == 12
    assert [record["floating"] for record in found.report] == [[], []]
    with torch.no_grad():
        assert (found(x) - encoder(x)).abs().max() < 0.1
        masked, wanted = (each(x, src_key_padding_mask=padding)[:, :4] for each in (found.model, encoder))
        assert (masked - wanted).abs().max() < 0.2
        separate_projections(encoder)
        assert (found(x) - encoder(x)).abs().max() > 0
