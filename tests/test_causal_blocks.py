"""OPT, GPT-2, LLaMA: factories, blocks against the whole model, masks, quantizers; roundings of transposed weights."""

import operator

import pytest
import test_transformer_blocks
import torch
import transformers
from torch import nn

from flexround.errors import InputError, SettingsError
from flexround.models import gpt2, llama, opt, transformer
from flexround.models.blocks import run
from flexround.models.surgery import attach
from flexround.quant.adaround import AdaRound
from flexround.quant.flexround import FlexRound
from flexround.quant.grid import Scheme
from flexround.quant.rounding import Axes

OPT = {
    "vocab_size": 50,
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "ffn_dim": 24,
    "max_position_embeddings": 12,
}
GPT2 = {"vocab_size": 50, "n_embd": 16, "n_layer": 3, "n_head": 2, "n_positions": 12}
LLAMA = {
    "vocab_size": 50,
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 24,
    "max_position_embeddings": 12,
}
KINDS = ("gpt2", "opt-pre", "opt-post", "llama", "llama-grouped")
NORMS = {"gpt2": "ln_f", "opt": "decoder.final_layer_norm", "llama": "norm"}
LENGTHS = (12, 1, 7, 2)


def make(kind: str, **config):
    torch.set_num_threads(1)
    if kind == "gpt2":
        model = transformer.gpt2("causal-lm", seed=3, **GPT2 | config)
    elif kind.startswith("llama"):
        groups = 2 if kind == "llama-grouped" else 4
        model = transformer.llama("causal-lm", seed=3, **LLAMA | {"num_key_value_heads": groups} | config)
    else:
        model = transformer.opt("causal-lm", seed=3, **OPT | {"do_layer_norm_before": kind == "opt-pre"} | config)
    with torch.no_grad():  # initial weights of 0.02 and biases of 0 would hide what attention does
        for parameter in model.base_model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(15)
            else:
                parameter.add_(torch.linspace(-0.5, 0.5, len(parameter)))
    return model


def cut(model):
    return {"gpt2": gpt2, "opt": opt, "llama": llama}[model.config.model_type].blocks(model)


def batch(seed=0):
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(2, 50, (len(LENGTHS), 12), generator=generator)
    types = (torch.arange(12) > 4).long().expand_as(ids)
    mask = torch.arange(12) < torch.tensor(LENGTHS)[:, None]
    return torch.stack([ids, types], 1), mask


def before_final_norm(model, x, mask):
    seen = []
    if norm := operator.attrgetter(NORMS[model.config.model_type])(model.base_model):
        norm.register_forward_pre_hook(lambda _, arguments: seen.append(arguments[0]))
    output = model.base_model(x[:, 0], attention_mask=None if mask is None else mask.long())
    return seen[0] if seen else output.last_hidden_state


@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_blocks_in_order_equal_the_model(kind, attention, padded):
    model = make(kind, attn_implementation=attention)
    assert model.config._attn_implementation == attention
    x, mask = batch()
    mask = mask if padded else None
    found, expected = run(cut(model), x, mask), before_final_norm(model, x, mask)
    real = mask if padded else torch.ones_like(x[:, 0], dtype=torch.bool)
    assert torch.equal(found[real], expected[real])
    assert found.isfinite().all()


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_padding_changes_no_real_token(kind):
    blocks = cut(make(kind))
    x, mask = batch()
    other = torch.where(mask[:, None], x, batch(seed=1)[0])
    one, two = run(blocks, x, mask), run(blocks, other, mask)
    assert torch.equal(one[mask], two[mask])
    assert not torch.equal(one[~mask], two[~mask])
    short = run(blocks, x[3:, :, :2])  # the last sample without its padding
    assert torch.allclose(one[3:, :2], short, atol=1e-5)


@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_no_token_sees_later_ones(kind, attention, padded):
    blocks = cut(make(kind, attn_implementation=attention))
    x, _ = batch()
    changed = x.clone()
    changed[:, 0, 4] = 2 + changed[:, 0, 4] % 48
    mask = torch.arange(12).expand(4, 12) < 9 if padded else None
    moved = (run(blocks, x, mask) != run(blocks, changed, mask)).any(-1).any(0)
    assert moved[:9].tolist() == [i >= 4 for i in range(9)]


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_no_token_sees_masked_ones(kind, attention):
    blocks = cut(make(kind, attn_implementation=attention))
    x, mask = batch()[0], (torch.arange(12) != 4).expand(4, 12)
    changed = x.clone()
    changed[:, 0, 4] = 2 + changed[:, 0, 4] % 48
    moved = (run(blocks, x, mask) != run(blocks, changed, mask)).any(-1).any(0)
    assert moved.tolist() == [i == 4 for i in range(12)]


@torch.no_grad()
def test_positions_start_at_row_two_in_opt_and_at_row_zero_in_gpt2():
    x, _ = batch()
    base = make("opt-pre").base_model.decoder
    embedded = opt.blocks(make("opt-pre"))[0].before(x)
    assert torch.equal(embedded, base.embed_tokens.weight[x[:, 0]] + base.embed_positions.weight[2:14])
    base = make("gpt2").base_model
    assert torch.equal(gpt2.blocks(make("gpt2"))[0].before(x), base.wte.weight[x[:, 0]] + base.wpe.weight)


@torch.no_grad()
def test_rotary_positions_are_computed_once_for_each_length():
    model, lengths = make("llama"), []
    blocks = cut(model)
    model.base_model.rotary_emb.register_forward_pre_hook(lambda _, arguments: lengths.append(arguments[0].shape[1]))
    x, mask = batch()
    for inputs in (x, x[:2], x[:, :, :5]):
        run(blocks, inputs)
    run(blocks, x, mask)
    assert lengths == [12, 5]


@torch.no_grad()
def test_queries_are_rotated_by_their_position():
    model = make("llama")
    cosines, sines = llama.Rotation(model.base_model.rotary_emb)(torch.zeros(1, 12, 16))
    angles = torch.arange(12)[:, None] * 10000.0 ** -torch.tensor([0, 0.5])  # head size 4: two pairs of dimensions
    for found, expected in ((cosines, angles.cos()), (sines, angles.sin())):
        assert torch.allclose(found, torch.cat([expected, expected], 1)[None], atol=1e-6)


class Mark(nn.Module):
    """A quantizer that puts every tensor it sees onto a coarse grid and remembers the result."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def forward(self, x):
        self.seen.append(torch.round(x * 2) / 2 + 0.25)
        return self.seen[-1]


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_linears_and_nothing_else_read_quantized_tensors(kind):
    model = make(kind)
    blocks, marks, inputs = cut(model), [], {}
    for block in blocks:
        for site in block.sites:
            marks.append(Mark())
            attach.attach_quantizer(site, marks[-1])
    linears = [module for block in blocks for module in attach.weight_layers(block)]
    for name, module in model.base_model.named_modules():
        if module in linears or not list(module.children()):
            module.register_forward_pre_hook(
                lambda module, arguments, name=name: inputs.__setitem__(name, (module, arguments[0]))
            )
    run(blocks, *batch())
    assert [len(mark.seen) for mark in marks] == [1] * 4 * len(blocks)
    quantized = {id(mark.seen[0]): i for i, mark in enumerate(marks)}
    for name, (module, tensor) in inputs.items():
        assert (id(tensor) in quantized) == (module in linears), name
    readers = [quantized[id(tensor)] for module, tensor in inputs.values() if module in linears]
    of_layer = {"gpt2": (0, 1, 2, 3), "opt": (0, 0, 0, 1, 2, 3), "llama": (0, 0, 0, 1, 2, 2, 3)}
    expected = of_layer[model.config.model_type]
    assert sorted(readers) == [4 * i + j for i in range(len(blocks)) for j in expected]


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_the_residual_is_not_quantized(kind):
    block = cut(make(kind))[0]
    for linear in attach.weight_layers(block):  # without the branches only the residual is left
        for parameter in linear.parameters():
            parameter.zero_()
    for site in block.sites:
        attach.attach_quantizer(site, Mark())
    x = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(0))
    expected = x
    if kind == "opt-post":
        expected = block.module.final_layer_norm(block.module.self_attn_layer_norm(x))
    assert torch.equal(block(x), expected)


def input_steps(kind, hidden, mask, kept):
    block = cut(make(kind))[0]
    for site in block.sites:
        attach.attach_quantizer(site, attach.Observer(Scheme(8, False), "minmax", 2.4, [kept]))
    block(hidden, mask)
    return torch.stack([attach.attached_quantizer(site).quantizer.grid.step for site in block.sites])


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_padding_counts_in_no_initial_step(kind):
    mask = batch()[1]
    x = torch.randn(4, 12, 16, generator=torch.Generator().manual_seed(0))
    wild = torch.where(mask[..., None], x, 100 * x.flip(-1))
    assert torch.equal(input_steps(kind, x, mask, mask), input_steps(kind, wild, mask, mask))
    assert not torch.equal(input_steps(kind, x, mask, None), input_steps(kind, wild, mask, None))


@pytest.mark.parametrize("kind", [*KINDS, "bert", "gpt_neo"])
@torch.no_grad()
def test_blocks_run_by_autocast(kind):
    """Masks, positions and quantizers included; padded rows and initial steps too, whose search is in float32."""
    other = kind in ("bert", "gpt_neo")
    model = test_transformer_blocks.make(kind) if other else make(kind)
    blocks = test_transformer_blocks.cut(model) if other else cut(model)
    x, mask = test_transformer_blocks.batch() if other else batch()
    full, low = x, x
    for block in blocks:
        full = block(block.before(full), mask)
        with torch.autocast("cpu", torch.bfloat16):
            low = block(block.before(low), mask)
            for site in block.sites:
                attach.attach_quantizer(site, attach.Observer(Scheme(8, False), "mse", 2.4, [mask]))
            block(full, mask)
        assert all(attach.attached_quantizer(site).quantizer.raw_step.dtype == torch.float32 for site in block.sites)
    error = ((low.float() - full)[mask].norm() / full[mask].norm()).item()
    assert 0 < error < 0.02


def both_layouts():
    from transformers.pytorch_utils import Conv1D

    transposed, plain = Conv1D(7, 5), nn.Linear(5, 7)
    with torch.no_grad():
        transposed.weight.copy_(torch.randn(5, 7, generator=torch.Generator().manual_seed(0)))
        plain.weight.copy_(transposed.weight.T)
        transposed.bias.copy_(plain.bias)
    return transposed, plain


@pytest.mark.parametrize("per_channel", [True, False])
@pytest.mark.parametrize("rounding", [FlexRound, AdaRound])
def test_a_transposed_layer_learns_what_the_linear_with_the_same_weights_learns(rounding, per_channel):
    x = torch.randn(4, 5, generator=torch.Generator().manual_seed(1))
    layers, outputs = both_layouts(), []
    for layer in layers:
        axes = attach.weight_axes(layer)
        scheme = Scheme(4, False, axes.output if per_channel else None)
        weight = layer.weight.detach()
        learned = rounding(weight, attach.weight_grid("layer", weight, scheme, "mse", 2.4), axes)
        attach.attach_rounding(layer, learned)
        assert attach.weight_axes(layer) == axes
        optimizer = torch.optim.Adam(learned.parameters(), lr=0.05)
        for _ in range(5):
            optimizer.zero_grad()
            (layer(x) - x.sum(1, keepdim=True)).square().sum().backward()
            optimizer.step()
        outputs.append((learned.step(), learned.codes(weight), *learned.parameters()))
    assert attach.weight_axes(layers[0]) == Axes(output=1)
    for one, two in zip(*outputs, strict=True):
        assert torch.allclose(one, two.T if two.ndim else two, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("factory", "config", "name"),
    [
        (transformer.opt, OPT, "OPTForCausalLM"),
        (transformer.gpt2, GPT2, "GPT2LMHeadModel"),
        (transformer.llama, LLAMA, "LlamaForCausalLM"),
    ],
)
def test_factories_build_from_the_seed_alone(factory, config, name):
    torch.manual_seed(1)
    state = torch.get_rng_state()
    one = factory("causal-lm", seed=5, **config)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    two, three = factory("causal-lm", seed=5, **config), factory("causal-lm", seed=6, **config)
    assert type(one).__name__ == name
    assert not one.training
    values = [torch.cat([p.flatten() for p in model.parameters()]) for model in (one, two, three)]
    assert torch.equal(values[0], values[1])
    assert not torch.equal(values[0], values[2])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: transformer.opt("span"), "opt: head 'span'.*known: causal-lm"),
        (lambda: transformer.gpt2("classification"), "gpt2: head 'classification'"),
        (lambda: transformer.llama("classification"), "llama: head 'classification'.*known: causal-lm"),
        (lambda: transformer.llama("causal-lm", **LLAMA | {"num_attention_heads": 3}), "16.*3"),
        (lambda: transformer.opt("causal-lm", ffn_din=8), "'ffn_din' .did you mean 'ffn_dim'"),
        (lambda: transformer.gpt2("causal-lm", n_embd=10, n_head=3), "10.*3"),
        (lambda: transformer.opt("causal-lm", **OPT | {"num_attention_heads": 3}), "16.*3"),
    ],
)
def test_impossible_settings_are_refused(call, message):
    with pytest.raises(SettingsError, match=f"(?s){message}"):
        call()


def test_the_projections_of_opt_350m_are_refused():
    config = OPT | {"word_embed_proj_dim": 8, "do_layer_norm_before": False}
    message = "word_embed_proj_dim is 8, hidden_size 16.*OPT-125M"
    with pytest.raises(InputError, match=message):
        transformer.opt("causal-lm", **config)
    with pytest.raises(InputError, match=message):
        opt.blocks(transformers.OPTForCausalLM(transformers.OPTConfig(**config)))


def test_uneven_groups_of_heads_are_refused():
    config = LLAMA | {"num_key_value_heads": 3}
    message = "num_attention_heads is 4, no multiple of num_key_value_heads, 3"
    with pytest.raises(InputError, match=message):
        transformer.llama("causal-lm", **config)
    with pytest.raises(InputError, match=message):
        llama.blocks(transformers.LlamaForCausalLM(transformers.LlamaConfig(**config)))
