"""What holds for every kind of network, recipe and type of weights that ``flexround.quantize`` takes."""

import copy
import functools

import pytest
import torch
from own_networks import FEW, Across, Attends, Pictures, Words, llama, made, pictures, words
from torch import nn

import flexround

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
KINDS = {
    "pictures": (lambda: made(Pictures), pictures),
    "words": (lambda: made(Words), words),
    "one block": (lambda: made(Across), lambda: torch.randn(16, 4, generator=torch.Generator().manual_seed(1))),
    "attention": (lambda: made(Attends), lambda: torch.randn(16, 6, 8, generator=torch.Generator().manual_seed(1))),
    "llama": (llama, words),
    "llama in groups": (llama, words),
}
GROUP = {"w_granularity": "group", "group_size": 8}
NEAREST = ("B", "rtn", None)
LEARNED = ("B", "flexround", 4)
RECIPES = [LEARNED, ("Q", "flexround", 8), ("B", "adaround", None), ("Q", "signround", 8), ("B", "gptq", None), NEAREST]
CASES = [(kind, recipe, torch.float32) for kind in ("pictures", "llama") for recipe in RECIPES]
CASES += [(kind, LEARNED, torch.float32) for kind in KINDS if kind not in ("pictures", "llama")]
CASES += [("pictures", LEARNED, torch.bfloat16), ("llama", LEARNED, torch.float64)]


def quantized(kind, model, setting, rounding, a_bits):
    recipe = flexround.Recipe(setting=setting, rounding=rounding, w_bits=3, a_bits=a_bits)
    settings = FEW | {"iters": 20, "lr": 5e-2 if rounding == "adaround" else 2e-2} | (GROUP if "groups" in kind else {})
    return flexround.quantize(model, KINDS[kind][1](), recipe, **settings)


@functools.cache
def nearest(kind, of_type):
    return quantized(kind, KINDS[kind][0]().to(of_type), *NEAREST).codes()


def answer(model, kind):
    x = KINDS[kind][1]()
    given = model(x.to(next(model.parameters()).dtype) if x.is_floating_point() else x)
    return getattr(given, "logits", given)


@pytest.mark.parametrize(("kind", "recipe", "of_type"), CASES)
def test_what_quantize_promises(tmp_path, kind, recipe, of_type):
    model = KINDS[kind][0]().to(of_type)
    before, full = copy.deepcopy(model.state_dict()), answer(model, kind)
    found = quantized(kind, model, *recipe)
    after, codes = answer(found.model, kind), found.codes()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items()), "the original stays"
    assert after.dtype == of_type
    assert 0 < (after - full).norm() < 0.9 * full.norm()
    assert bool(found.sites) == bool(recipe[2])
    assert all(stored.codes.max() <= stored.grid.qmax for stored in codes.values())
    assert {p.dtype for name, p in found.model.named_parameters() if "quantizer" not in name} == {of_type}

    for record in (record for record in found.report if record["phase"] == "weights"):
        layers = [name for name in codes if record["block"] == "network" or f".{record['block']}." in f".{name}."]
        moved = [not torch.equal(codes[name].values(), nearest(kind, of_type)[name].values()) for name in layers]
        assert layers
        assert any(moved) == record["learned"] == (recipe[1] != "rtn"), record
        assert record["nearest"] == [], record
        assert {"error_rtn", "error_hard"} <= record.keys()

    again = flexround.load(found.save(tmp_path / "out"), KINDS[kind][0]().to(of_type))
    assert torch.equal(answer(again.model, kind), after)
    assert again.report == found.report


class Pooled(nn.Module):
    """Reads tokens, and goes on with the first of each row."""

    def __init__(self, tokens=9):
        super().__init__()
        self.embedding = nn.Embedding(50, 8)
        self.parts = nn.Sequential(nn.Linear(8, 8), nn.Tanh())
        self.head = nn.Sequential(nn.Linear(8, tokens), nn.ReLU(), nn.Linear(tokens, 3))
        self.register_buffer("mask", torch.full((tokens, tokens), -torch.inf).triu(1))

    def forward(self, ids):
        return self.head(self.parts(self.embedding(ids))[:, 0])


def padded(kind, recipe, **settings):
    """Return the report of a network whose samples have padding, by block."""
    mask = torch.arange(9) < torch.randint(2, 9, (16, 1), generator=torch.Generator().manual_seed(0))
    given = {"input_ids": words()[:, :9], "attention_mask": mask.long()}
    found = flexround.quantize(made(kind), given, recipe, **FEW | {"batch": 4} | settings)
    return {record["block"]: record["error_hard"] for record in found.report}


def test_padding_is_left_out_of_tokens_alone():
    masked, whole = (padded(Pooled, "b-rtn-w4", mask_padding=on) for on in (True, False))
    assert masked.keys() == {"parts", "head.0", "head.2"}
    assert [block for block in masked if masked[block] != whole[block]] == ["parts"]


@pytest.mark.parametrize("kind", [Pooled, Words])
def test_networks_with_an_own_mask_learn_from_padded_samples(kind):
    assert all(0 < error < torch.inf for error in padded(kind, "q-flexround-w4a4").values())
