"""BERT and GPT-Neo: factories, blocks against the whole model, masks, and where quantizers see tensors."""

import pytest
import torch
from torch import nn

from flexround.errors import SettingsError
from flexround.models import bert, gpt_neo, transformer
from flexround.models.blocks import run
from flexround.models.surgery.attach import attach_quantizer, weight_layers

SMALL = {"vocab_size": 50, "hidden_size": 16, "max_position_embeddings": 12}
BERT = SMALL | {"num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 24}
NEO = SMALL | {
    "num_layers": 4,
    "num_heads": 2,
    "attention_types": [[["global", "local"], 2]],
    "window_size": 3,
    "pad_token_id": 0,
}
LENGTHS = (12, 1, 7, 2)


def make(kind: str, head: str = "classification", **config) -> nn.Module:
    torch.set_num_threads(1)
    model = {"bert": transformer.bert, "gpt_neo": transformer.gpt_neo}[kind](
        head, seed=3, **({"bert": BERT, "gpt_neo": NEO}[kind] | config)
    )
    with torch.no_grad():  # initial weights of 0.02 would hide what attention does
        for parameter in model.base_model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(15)
    return model


def cut(model: nn.Module) -> list:
    return {"bert": bert, "gpt_neo": gpt_neo}[model.config.model_type].blocks(model)


def batch(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(1, 50, (len(LENGTHS), 12), generator=generator)
    types = (torch.arange(12) > 4).long().expand_as(ids)
    mask = torch.arange(12) < torch.tensor(LENGTHS)[:, None]
    return torch.stack([ids, types], 1), mask


def last_hidden_state(model: nn.Module, x: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    base = model.base_model
    if model.config.model_type == "bert":
        return base(x[:, 0], attention_mask=mask, token_type_ids=x[:, 1]).last_hidden_state
    seen = []
    handle = base.ln_f.register_forward_pre_hook(lambda _, arguments: seen.append(arguments[0]))
    base(x[:, 0], attention_mask=mask)
    handle.remove()
    return seen[0]


CASES = [("bert", "sdpa"), ("bert", "eager"), ("gpt_neo", "eager")]


@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize(("kind", "attention"), CASES)
@torch.no_grad()
def test_blocks_in_order_equal_the_model(kind, attention, padded):
    model = make(kind, attn_implementation=attention)
    assert model.config._attn_implementation == attention
    x, mask = batch()
    mask = mask if padded else None
    expected, found = last_hidden_state(model, x, mask), run(cut(model), x, mask)
    real = mask if padded else torch.ones_like(x[:, 0], dtype=torch.bool)
    assert torch.allclose(found[real], expected[real], rtol=0, atol=1e-6)
    assert found.isfinite().all()


@pytest.mark.parametrize("kind", ["bert", "gpt_neo"])
@torch.no_grad()
def test_padding_changes_no_real_token(kind):
    blocks = cut(make(kind))
    x, mask = batch()
    other = torch.where(mask[:, None], x, batch(seed=1)[0])
    one, two = run(blocks, x, mask), run(blocks, other, mask)
    assert torch.equal(one[mask], two[mask])
    assert not torch.equal(one[~mask], two[~mask])
    short = run(blocks, x[3:, :, :2])  # the last sample without its padding
    assert torch.allclose(one[3:, :2], short, atol=1e-6)


@torch.no_grad()
def test_local_layers_look_back_one_window_only():
    model = make("gpt_neo", num_layers=1, attention_types=[[["local"], 1]])
    (block,) = cut(model)
    x, _ = batch()
    changed = x.clone()
    changed[:, 0, 4] = 1 + changed[:, 0, 4] % 49
    moved = (run([block], x) != run([block], changed)).any(-1).any(0)
    assert moved.tolist() == [4 <= i < 4 + NEO["window_size"] for i in range(12)]


@torch.no_grad()
def test_token_types_matter_to_bert_only():
    x, mask = batch()
    other = torch.stack([x[:, 0], 1 - x[:, 1]], 1)
    for kind, matter in (("bert", True), ("gpt_neo", False)):
        blocks = cut(make(kind))
        assert torch.equal(run(blocks, x, mask), run(blocks, other, mask)) != matter


class Mark(nn.Module):
    """A quantizer that puts every tensor it sees onto a coarse grid and remembers the result."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def forward(self, x):
        self.seen.append(torch.round(x * 2) / 2 + 0.25)
        return self.seen[-1]


@pytest.mark.parametrize("kind", ["bert", "gpt_neo"])
@torch.no_grad()
def test_linears_and_nothing_else_read_quantized_tensors(kind):
    model = make(kind)
    blocks, marks, inputs = cut(model), [], {}
    for block in blocks:
        for site in block.sites:
            marks.append(Mark())
            attach_quantizer(site, marks[-1])
    for name, module in model.base_model.named_modules():
        if isinstance(module, nn.Linear) or not list(module.children()):
            module.register_forward_pre_hook(
                lambda module, arguments, name=name: inputs.__setitem__(name, (module, arguments[0]))
            )
    x, mask = batch()
    run(blocks, x, mask)
    assert [len(mark.seen) for mark in marks] == [1] * 4 * len(blocks)
    quantized = {id(mark.seen[0]): i for i, mark in enumerate(marks)}
    linears = [module for block in blocks for module in weight_layers(block)]
    for name, (module, tensor) in inputs.items():
        assert (id(tensor) in quantized) == (module in linears), name
    readers = [quantized[id(tensor)] for module, tensor in inputs.values() if module in linears]
    assert sorted(readers) == sorted(4 * i + j for i in range(len(blocks)) for j in (0, 0, 0, 1, 2, 3))


@pytest.mark.parametrize("kind", ["bert", "gpt_neo"])
@torch.no_grad()
def test_the_residual_is_not_quantized(kind):
    model = make(kind)
    block = cut(model)[0]
    for linear in weight_layers(block):  # without the branches only the residual is left
        linear.weight.zero_()
        if linear.bias is not None:
            linear.bias.zero_()
    for site in block.sites:
        attach_quantizer(site, Mark())
    x = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(0))
    expected = x
    if kind == "bert":
        expected = block.module.output.LayerNorm(block.module.attention.output.LayerNorm(x))
    assert torch.equal(block(x), expected)


@pytest.mark.parametrize(
    ("factory", "head", "name"),
    [
        (transformer.bert, "classification", "BertForSequenceClassification"),
        (transformer.bert, "span", "BertForQuestionAnswering"),
        (transformer.bert, "pretraining", "BertForPreTraining"),
        (transformer.gpt_neo, "classification", "GPTNeoForSequenceClassification"),
        (transformer.gpt_neo, "causal-lm", "GPTNeoForCausalLM"),
    ],
)
def test_factories_build_from_the_seed_alone(factory, head, name):
    config = BERT if factory is transformer.bert else NEO
    torch.manual_seed(1)
    state = torch.get_rng_state()
    one = factory(head, seed=5, **config)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    two, three = factory(head, seed=5, **config), factory(head, seed=6, **config)
    assert type(one).__name__ == name
    assert not one.training
    values = [torch.cat([p.flatten() for p in model.parameters()]) for model in (one, two, three)]
    assert torch.equal(values[0], values[1])
    assert not torch.equal(values[0], values[2])


def test_labels_are_the_outputs():
    for labels in (1, 3):
        model = transformer.bert("classification", labels, **BERT)
        assert model.classifier.out_features == labels
        assert transformer.gpt_neo("classification", labels, **NEO).score.out_features == labels


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: transformer.bert("causal-lm"), "bert: head 'causal-lm'.*known: classification, pretraining, span"),
        (lambda: transformer.gpt_neo("pretraining"), "gpt_neo: head 'pretraining'"),
        (lambda: transformer.bert("span", labels=3), "labels=3 with head 'span'"),
        (lambda: transformer.bert("span", hidden_sise=8), "'hidden_sise' .did you mean 'hidden_size'"),
        (lambda: transformer.gpt_neo("classification"), "pad_token_id"),
        (lambda: transformer.bert("span", hidden_size="8"), "hidden_size.*expected int"),
        (lambda: transformer.bert("span", hidden_size=10, num_attention_heads=3), "10.*multiple"),
        (lambda: transformer.bert("span", **BERT | {"hidden_act": "gulu"}), "gulu"),
        (lambda: transformer.gpt_neo("causal-lm", num_layers=3), "attention_types"),
    ],
)
def test_impossible_settings_are_refused(call, message):
    with pytest.raises(SettingsError, match=f"(?s){message}"):
        call()
