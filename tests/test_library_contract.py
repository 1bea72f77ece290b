"""What holds for every kind of network, recipe and type of weights that ``flexround.quantize`` takes."""

import copy
import functools
import warnings

import pytest
import torch
from own_networks import FEW, Across, Attends, Pictures, Words, llama, made, pictures, words

import flexround

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
CASES = [(kind, recipe, torch.float32) for kind in KINDS for recipe in RECIPES]
OTHERS = (torch.bfloat16, torch.float16, torch.float64)
CASES += [(kind, LEARNED, of) for kind in ("pictures", "attention", "llama") for of in OTHERS]


def quantized(kind, model, setting, rounding, a_bits):
    recipe = flexround.Recipe(setting=setting, rounding=rounding, w_bits=3, a_bits=a_bits)
    settings = FEW | {"iters": 20, "lr": 2e-2} | (GROUP if "groups" in kind else {})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
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

    again = flexround.load(found.save(tmp_path / "out"), KINDS[kind][0]().to(of_type))
    assert torch.equal(answer(again.model, kind), after)
    assert again.report == found.report
