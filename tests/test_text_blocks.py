"""The contract of every family of text networks: blocks against the whole model, padding, quantizers, factories."""

import functools
import operator

import pytest
import tiny
import torch
import transformers
from tensors import randn
from test_models import Mark
from torch import nn
from transformers.pytorch_utils import Conv1D

from flexround.errors import FlexRoundError, InputError
from flexround.mini import models as mini
from flexround.models import transformer
from flexround.models.blocks import run
from flexround.models.surgery import attach
from flexround.quant.adaround import AdaRound
from flexround.quant.flexround import FlexRound
from flexround.quant.grid import Scheme
from flexround.quant.rounding import Axes
from flexround.reconstruct.cache import Batches
from flexround.reconstruct.optimise import ReconstructionError
from flexround.tasks.protocol import Inputs

KINDS = {
    "bert": ("bert", {}),
    "gpt_neo": ("gpt_neo", {}),
    "gpt2": ("gpt2", {}),
    "opt-pre": ("opt", {"do_layer_norm_before": True}),
    "opt-post": ("opt", {"do_layer_norm_before": False}),
    "llama": ("llama", {"num_attention_heads": 4}),
    "llama-grouped": ("llama", {"num_attention_heads": 4, "num_key_value_heads": 2}),
}
NORMS = {"gpt_neo": "ln_f", "gpt2": "ln_f", "opt": "decoder.final_layer_norm", "llama": "norm"}
LENGTHS = (12, 1, 7, 2)
kinds = pytest.mark.parametrize("kind", KINDS)


def make(kind, **config):
    family, changes = KINDS[kind]
    model = tiny.make(family, seed=3, **changes | config)
    with torch.no_grad():  # initial weights of 0.02 and biases of 0 would hide what attention does
        for parameter in model.base_model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(15)
            elif kind not in ("bert", "gpt_neo"):
                parameter.add_(torch.linspace(-0.5, 0.5, len(parameter)))
    return model


def cut(model):
    return getattr(transformer, f"{model.config.model_type}_blocks")(model)


def batch():
    ids = torch.randint(2, 50, (len(LENGTHS), 12), generator=torch.Generator().manual_seed(0))
    types = (torch.arange(12) > 4).long().expand_as(ids)
    mask = torch.arange(12) < torch.tensor(LENGTHS)[:, None]
    return torch.stack([ids, types], 1), mask


def hidden_states(model, x, mask):
    """Return what the last layer of the whole model gives: before the final norm, where there is one."""
    seen, kind = [], model.config.model_type
    if kind in NORMS and (norm := operator.attrgetter(NORMS[kind])(model.base_model)):
        norm.register_forward_pre_hook(lambda _, arguments: seen.append(arguments[0]))
    types = {"token_type_ids": x[:, 1]} if kind == "bert" else {}
    output = model.base_model(x[:, 0], attention_mask=None if mask is None else mask.long(), **types)
    return seen[0] if seen else output.last_hidden_state


@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@kinds
@torch.no_grad()
def test_blocks_in_order_equal_the_model(kind, attention, padded):
    attention = "eager" if kind == "gpt_neo" else attention  # it has one
    model = make(kind, attn_implementation=attention)
    assert model.config._attn_implementation == attention
    x, mask = batch()
    real = mask if padded else torch.ones_like(mask)
    found = run(cut(model), x, mask if padded else None)
    expected = hidden_states(model, x, mask if padded else None)
    torch.testing.assert_close(found[real], expected[real], rtol=0, atol=1e-6 if kind in ("bert", "gpt_neo") else 0)
    assert found.isfinite().all()


@kinds
@torch.no_grad()
def test_the_residual_is_not_quantized(kind):
    block = cut(make(kind))[0]
    for linear in attach.weight_layers(block):  # without the branches only the residual is left
        for parameter in linear.parameters():
            parameter.zero_()
    for site in block.sites:
        attach.attach_quantizer(site, Mark())
    x = randn(2, 5, 16)
    expected, module = x, block.module
    if kind == "opt-post":
        expected = module.final_layer_norm(module.self_attn_layer_norm(x))
    elif kind == "bert":
        expected = module.output.LayerNorm(module.attention.output.LayerNorm(x))
    assert torch.equal(block(x), expected)


# padding in reconstruction: batches and samples end where only padding is left, and nothing else changes


def test_a_batch_ends_with_the_last_word_of_its_longest_row():
    kept = torch.arange(12) < torch.tensor([12, 5, 3, 7, 1, 9])[:, None]
    rows = torch.arange(6.0)[:, None, None] + torch.arange(12)[:, None] / 100 + torch.zeros(6, 12, 4)

    def batches(trim):
        of_rows, of_masks = (torch.Generator().manual_seed(seed) for seed in (0, 1))
        return Batches(rows, -rows, rows + 10, kept, trim, 2, 1.0, True, of_rows, of_masks)

    trimmed, whole, found = batches(trim=True), batches(trim=False), set()
    error = ReconstructionError(2.0, masked=True)
    for _ in range(20):
        (x, target, mask), (full_x, full_target, full_mask) = trimmed.draw(), whole.draw()
        length = int(full_mask.sum(1).max())
        found.add(length)
        assert x.shape == target.shape == (2, length, 4)
        assert torch.equal(x, full_x[:, :length])
        assert torch.equal(target, full_target[:, :length])
        assert torch.equal(mask, full_mask[:, :length])
        torch.testing.assert_close(error(x, target, mask), error(full_x, full_target, full_mask))
    assert len(found) > 2


@kinds
def test_cut_samples_give_the_same_hidden_states(kind):
    blocks = cut(make(kind))
    x, mask = batch()
    short = Inputs(x[1:], mask[1:]).trimmed()
    length = short.x.shape[-1]
    assert length == int(mask[1:].sum(1).max()) < x.shape[-1]
    assert short.mask.shape == (len(x) - 1, length)
    whole = run(blocks, x[1:], mask[1:])[:, :length]
    torch.testing.assert_close(run(blocks, *short)[short.mask], whole[short.mask])


def input_steps(kind, hidden, mask, kept):
    block = cut(make(kind))[0]
    for site in block.sites:
        attach.attach_quantizer(site, attach.Observer(Scheme(8, False), "minmax", 2.4, kept))
    block(hidden, mask)
    return torch.stack([attach.attached_quantizer(site).quantizer.grid.step for site in block.sites])


@kinds
@torch.no_grad()
def test_padding_counts_in_no_initial_step(kind):
    mask = batch()[1]
    x = randn(4, 12, 16)
    wild = torch.where(mask[..., None], x, 100 * x.flip(-1))
    assert torch.equal(input_steps(kind, x, mask, mask), input_steps(kind, wild, mask, mask))
    if kind != "gpt_neo":  # whose norm, as it is initialised, takes the greater size of the padding away
        assert not torch.equal(input_steps(kind, x, mask, None), input_steps(kind, wild, mask, None))


def test_padding_is_left_out_where_the_tokens_of_a_site_are():
    mask = batch()[1]
    x, kept = randn(*mask.shape, 3, 2), int(mask.sum())
    wanted = x[mask].flatten(1)
    for found in (x, x.flatten(2), x.flatten(2).flatten(0, 1), x.transpose(1, 2)):
        taken = attach.real(found, mask)
        assert torch.equal(taken.reshape(kept, 6), wanted), found.shape
    for some in (x.flatten(2).flatten(0, 1)[: mask.numel() // 2], randn(len(mask), 2 * mask.shape[1])):
        assert attach.real(some, mask) is some, "an expert's tokens, a pooled row"


def test_logits_of_gpt_neo_are_float32_under_autocast_too(monkeypatch):
    model, x = tiny.make("gpt_neo", "causal-lm"), torch.arange(8)[None]
    logits, products = [], []
    softmax, matmul = nn.functional.softmax, torch.matmul
    monkeypatch.setattr(nn.functional, "softmax", lambda x, **k: [logits.append(x), softmax(x, **k)][1])
    monkeypatch.setattr(torch, "matmul", lambda *x: products.append(matmul(*x)) or products[-1])
    with torch.autocast("cpu", torch.bfloat16):
        model(x)
    layers = model.config.num_layers
    assert [each.dtype for each in logits] == [torch.float32] * layers
    assert [each.dtype for each in products] == [torch.float32, torch.bfloat16] * layers


@kinds
@torch.no_grad()
def test_blocks_run_by_autocast(kind):
    """Masks, positions and quantizers included; padded rows and initial steps too, whose search is in float32."""
    blocks = cut(make(kind))
    x, mask = batch()
    full, low = x, x
    for block in blocks:
        full = block(block.before(full), mask)
        with torch.autocast("cpu", torch.bfloat16):
            low = block(block.before(low), mask)
            for site in block.sites:
                attach.attach_quantizer(site, attach.Observer(Scheme(8, False), "mse", 2.4, mask))
            block(full, mask)
        assert all(attach.attached_quantizer(site).quantizer.raw_step.dtype == torch.float32 for site in block.sites)
    error = ((low.float() - full)[mask].norm() / full[mask].norm()).item()
    assert 0 < error < 0.02


@pytest.mark.parametrize("per_channel", [True, False])
@pytest.mark.parametrize("rounding", [FlexRound, AdaRound])
def test_a_transposed_layer_learns_what_the_linear_with_the_same_weights_learns(rounding, per_channel):
    x, weights = randn(4, 5, seed=1), randn(7, 5)
    transposed, plain, outputs = Conv1D(7, 5), nn.Linear(5, 7), []
    plain.weight.data, transposed.weight.data, transposed.bias.data = weights, weights.T.contiguous(), plain.bias.data
    for layer in (transposed, plain):
        axes = attach.weight_axes(layer)
        weight, scheme = layer.weight.detach(), Scheme(4, False, axes.output if per_channel else None)
        learned = rounding(weight, attach.weight_grid("layer", weight, scheme, "mse", 2.4), axes)
        attach.attach_rounding(layer, learned)
        assert attach.weight_axes(layer) == axes == Axes(output=int(layer is transposed))
        optimizer = torch.optim.Adam(learned.parameters(), lr=0.05)
        for _ in range(5):
            optimizer.zero_grad()
            (layer(x) - x.sum(1, keepdim=True)).square().sum().backward()
            optimizer.step()
        outputs.append((learned.step(), learned.codes(weight), *learned.parameters()))
    for one, two in zip(*outputs, strict=True):
        assert torch.allclose(one, two.T if two.ndim else two, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("build", "name"),
    [
        (functools.partial(tiny.make, "bert", "classification"), "BertForSequenceClassification"),
        (functools.partial(tiny.make, "bert", "span"), "BertForQuestionAnswering"),
        (functools.partial(tiny.make, "bert", "pretraining"), "BertForPreTraining"),
        (functools.partial(tiny.make, "gpt_neo", "classification"), "GPTNeoForSequenceClassification"),
        (functools.partial(tiny.make, "gpt_neo", "causal-lm"), "GPTNeoForCausalLM"),
        (functools.partial(tiny.make, "opt", "causal-lm"), "OPTForCausalLM"),
        (functools.partial(tiny.make, "gpt2", "causal-lm"), "GPT2LMHeadModel"),
        (functools.partial(tiny.make, "llama", "causal-lm"), "LlamaForCausalLM"),
        (mini.resnet18, "NarrowResNet"),
        (mini.resnet50, "NarrowResNet"),
        (mini.mobilenetv2, "MobileNetV2"),
    ],
)
def test_factories_build_from_the_seed_alone(build, name):
    state = torch.get_rng_state()
    one = build(seed=5)
    assert torch.equal(torch.get_rng_state(), state)
    torch.rand(3)
    assert type(one).__name__ == name
    values = [torch.cat([p.flatten() for p in model.parameters()]) for model in (one, build(seed=5), build(seed=6))]
    assert torch.equal(values[0], values[1])
    assert not torch.equal(values[0], values[2])


PROJECTED = tiny.SIZES["opt"] | {"word_embed_proj_dim": 8, "do_layer_norm_before": False}
UNEVEN = tiny.SIZES["llama"] | {"num_attention_heads": 4, "num_key_value_heads": 3}


@pytest.mark.parametrize(
    ("factory", "head", "config", "message"),
    [
        (transformer.bert, "causal-lm", {}, "bert: head 'causal-lm'.*known: classification, pretraining, span"),
        (transformer.llama, "classification", {}, "llama: head 'classification'.*known: causal-lm"),
        (transformer.bert, "span", {"labels": 3}, "labels=3 with head 'span'"),
        (transformer.bert, "span", {"hidden_sise": 8}, "'hidden_sise' .did you mean 'hidden_size'"),
        (transformer.gpt_neo, "classification", {}, "pad_token_id"),
        (transformer.bert, "span", {"hidden_size": "8"}, "hidden_size.*expected int"),
        (transformer.bert, "span", {"hidden_size": 10, "num_attention_heads": 3}, "10.*multiple"),
        (transformer.llama, "causal-lm", tiny.SIZES["llama"] | {"num_attention_heads": 3}, "16.*3"),
        (transformer.bert, "span", tiny.SIZES["bert"] | {"hidden_act": "gulu"}, "gulu"),
        (transformer.gpt_neo, "causal-lm", {"num_layers": 3}, "attention_types"),
        (transformer.opt, "causal-lm", PROJECTED, "word_embed_proj_dim is 8, hidden_size 16.*OPT-125M"),
        (transformer.llama, "causal-lm", UNEVEN, "is 4, no multiple of num_key_value_heads, 3"),
    ],
)
def test_impossible_settings_are_refused(factory, head, config, message):
    with pytest.raises(FlexRoundError, match=f"(?s){message}"):
        factory(head, **config)


def test_architectures_that_blocks_cannot_cut_are_refused():
    with pytest.raises(InputError, match="OPT-125M"):
        transformer.opt_blocks(transformers.OPTForCausalLM(transformers.OPTConfig(**PROJECTED)))
    with pytest.raises(InputError, match="heads, 3"):
        transformer.llama_blocks(transformers.LlamaForCausalLM(transformers.LlamaConfig(**UNEVEN)))
