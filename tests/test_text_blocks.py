"""The contract of every family of text networks: blocks against the whole model, padding, quantizers, factories."""

import functools
import operator

import pytest
import tiny
import torch
from tensors import randn
from test_models import Mark, check_marked, watched
from torch import nn

from flexround.mini import models as mini
from flexround.models import transformer
from flexround.models.blocks import run
from flexround.models.surgery import attach
from flexround.quant.grid import Scheme
from flexround.reconstruct.cache import Batches
from flexround.reconstruct.optimise import ReconstructionError

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
def test_layers_read_quantized_tensors_and_nothing_else_is(kind):
    blocks, (x, mask) = cut(make(kind)), batch()
    marks, read = watched(blocks)
    run(blocks, x, mask)
    check_marked(read)
    assert [mark.calls for mark in marks] == [1] * len({id(tensor) for tensor in read})


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


FACTORIES = [functools.partial(tiny.make, kind) for kind in tiny.SIZES]


@pytest.mark.parametrize("build", [*FACTORIES, mini.resnet18, mini.mobilenetv2])
def test_factories_build_from_the_seed_alone(build):
    state = torch.get_rng_state()
    one = build(seed=5)
    assert torch.equal(torch.get_rng_state(), state)
    torch.rand(3)
    values = [torch.cat([p.flatten() for p in model.parameters()]) for model in (one, build(seed=5), build(seed=6))]
    assert torch.equal(values[0], values[1])
    assert not torch.equal(values[0], values[2])
