"""The reconstruction engine on a toy network: settings B and Q, determinism, invariants, records, errors."""

import dataclasses
import functools
import math
import random
import tempfile

import numpy as np
import pytest
import torch
import toy
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from flexround.errors import NumericalError
from flexround.machine import memory
from flexround.models.blocks import Block, Site
from flexround.models.surgery import attach
from flexround.quant.flexround import FlexRound
from flexround.quant.grid import Scheme
from flexround.quant.search import initial_grid
from flexround.reconstruct import initial
from flexround.reconstruct.cache import Store
from flexround.reconstruct.reconstruction import Resident
from flexround.settings.schema import Hyper

Q = toy.recipe("Q", "flexround", 3, 4)
LR = {"adaround": 5e-2, "adaquant": {"v": 3e-3, "s1": 3e-3}, "adaquant-flexround": {"v": 3e-4, "scales": 1e-2}}
SETTINGS = {
    "adaround": {"schedule": "none", "reg_weight": 0.01, "iters": 40},
    "signround": {"optimizer": "sign", "schedule": "linear", "iters": 50, "lr": 0.02},
    "gptq": {"iters": 0, "a_iters": 0},
}


def reconstruct(tmp_path, recipe, net=None, x=None, **hyper):
    hyper = {"lr": LR.get(recipe.rounding, 1e-2)} | SETTINGS.get(recipe.rounding, {}) | hyper
    return toy.run(toy.job(recipe, net=net, **hyper), tmp_path, x=x)


@torch.no_grad()
def output_error(model):
    x = toy.samples()
    return (model(x) - toy.model()(x)).square().sum().item()


@functools.cache
def nearest_error(setting, a_bits, **hyper):
    """Return the error of the output at round-to-nearest."""
    with tempfile.TemporaryDirectory() as directory:
        settings = hyper | {"iters": 0, "a_iters": 0}
        return output_error(reconstruct(directory, toy.recipe(setting, "rtn", 3, a_bits), **settings)[2])


@pytest.mark.parametrize(
    ("setting", "rounding", "a_bits", "options", "grid"),
    [
        ("B", "adaround", 4, {}, {}),
        ("Q", "adaquant", 4, {}, {}),
        ("Q", "flexround", 4, {}, {}),
        ("B", "adaquant-flexround", None, {}, {}),
        ("Q", "lrq", 4, {}, {}),
        ("B", "signround", None, {}, {"w_scheme": "asymmetric", "w_granularity": "channel"}),
        ("Q", "gptq", 4, {"act_order": True}, {}),
    ],
)
def test_each_rounding_beats_nearest_and_is_stored_as_learned(tmp_path, setting, rounding, a_bits, options, grid):
    found, _, model = reconstruct(tmp_path, toy.recipe(setting, rounding, 3, a_bits, **options), **grid)
    assert output_error(model) < 0.8 * nearest_error(setting, a_bits, **grid)
    for name in ("body.0.conv1", "body.1.conv2"):
        codes, zero_point, step = (found[f"weight/{name}:{part}"] for part in ("codes", "zero_point", "step"))
        torch.testing.assert_close((codes.float() - zero_point) * step, model.get_submodule(name).weight)


class Scales:
    """FlexRound of one weight, spelled out: W / (s1 S2 s3 s4) rounded and clipped, each scale as its logarithm."""

    def __init__(self, weight, bits):
        self.weight, self.top = weight.detach(), 2 ** (bits - 1)
        self.start = initial_grid(self.weight, Scheme(bits)).step
        outputs, inputs, *kernel = weight.shape
        shapes = [(), weight.shape, (outputs, 1, *[1] * len(kernel)), *([(1, inputs, 1, 1)] if kernel else [])]
        self.logs = [torch.zeros(shape, requires_grad=True) for shape in shapes]

    def step(self):
        return self.start * self.logs[0].exp()

    def codes(self):
        quotient = self.weight / self.step()
        for log in self.logs[1:]:
            quotient = quotient / log.exp()
        rounded = quotient.round().detach()
        inside = (rounded >= -self.top) & (rounded < self.top)
        return torch.where(inside, rounded + quotient - quotient.detach(), rounded.clamp(-self.top, self.top - 1))


def spelled_out(job):
    """Learn the weights of the toy in plain PyTorch, block by block; return the scales of each layer by its name."""
    net, hyper, found = toy.model(), job.hyper, {}
    names = {module: name for name, module in net.named_modules()}
    full = quantized = toy.samples()
    for block in toy.blocks(net):
        full, quantized = block.before(full), block.before(quantized)
        target = block(full.clone()).detach()
        layers = {name: module for name, module in block.module.named_modules() if hasattr(module, "weight")}
        scales = {name: Scales(layer.weight, 3 if "body" in block.name else 8) for name, layer in layers.items()}
        adam = torch.optim.Adam([log for each in scales.values() for log in each.logs])
        rows = job.generator("rows", block.name)
        for iteration in range(hyper.iters):
            adam.param_groups[0]["lr"] = hyper.lr * 0.5 * (1 + math.cos(math.pi * iteration / hyper.iters))
            drawn = torch.randperm(len(target), generator=rows)[: hyper.batch]
            weights = {f"{name}.weight".lstrip("."): each.codes() * each.step() for name, each in scales.items()}
            output = torch.func.functional_call(block.module, weights, (quantized[drawn],))
            adam.zero_grad()
            (output - target[drawn]).abs().pow(hyper.loss_p).sum(1).mean().backward()
            adam.step()
        for name, layer in layers.items():
            layer.weight.data = (scales[name].codes().round() * scales[name].step()).detach()
            found[names[layer]] = scales[name]
        full, quantized = target, block(quantized.clone()).detach()
    return found


@pytest.mark.parametrize("p", [2.0, 2.4])
def test_flexround_by_b_learns_what_a_plain_loop_learns(tmp_path, p):
    """In few iterations: last digits differ, and in the long run one of them decides about a rounding."""
    job = toy.job(toy.recipe(), iters=5, loss_p=p, lr=5e-3)
    expected, (found, _, model) = spelled_out(job), toy.run(job, tmp_path)
    assert {key.partition(":")[0] for key in found} == {f"weight/{name}" for name in expected}
    for name, scales in expected.items():
        codes, step = (found[f"weight/{name}:{part}"] for part in ("codes", "step"))
        torch.testing.assert_close(step, scales.step().detach(), rtol=1e-5, atol=0)
        assert (codes != scales.codes().round()).float().mean() < 0.005
        assert (codes != (scales.weight / scales.start).round().clamp(-scales.top, scales.top - 1)).any(), "it learned"
        assert torch.equal(model.get_submodule(name).weight, codes * step)


class Noisy(FlexRound):
    """Draws from the global generator, as a user's rounding may."""

    def forward(self, weight):
        noise = torch.randn_like(weight) * np.random.rand() * random.random()  # noqa: NPY002
        return super().forward(weight + 0.3 * noise * weight.std())


def test_a_rounding_that_draws_numbers_repeats_its_bits(tmp_path):
    found = []
    for seed in (1, 2):
        torch.manual_seed(seed), np.random.seed(seed), random.seed(seed)  # noqa: NPY002
        job = dataclasses.replace(toy.job(toy.recipe("B", "flexround", 3)), rounding=Noisy)
        found.append(toy.run(job, tmp_path / str(seed))[2].state_dict())
    assert toy.same(*found)


def test_stem_is_left_at_rtn_unless_reconstructed(tmp_path):
    key, settings = "weight/stem:codes", {"stem_bits": 3, "lr": 3e-2}
    rtn = reconstruct(tmp_path, toy.recipe("B", "rtn", 3), stem_bits=3)[0][key]
    fixed, learned = (
        reconstruct(tmp_path, toy.recipe(), reconstruct_stem=stem, **settings)[0][key] for stem in (False, True)
    )
    assert torch.equal(rtn, fixed)
    assert not torch.equal(learned, fixed)


def few_blocks(model):
    """Cut a toy network into two blocks of several layers, in which its first and last layer are."""
    stem, first, second, _ = toy.blocks(model)
    start = torch.nn.Sequential(model.stem, model.act, model.body[0])
    end = torch.nn.Sequential(model.body[1], model.head)
    return [
        Block("start", start, stem.sites + first.sites),
        Block("end", end, second.sites, call=lambda module, x, _: module[1](toy.pool(module[0](x)))),
    ]


@pytest.mark.parametrize("cut", [toy.blocks, few_blocks])
@pytest.mark.parametrize(("setting", "stem"), [("B", 8), ("Q", "low")])
def test_activation_sites_have_their_bits_and_one_sided_grids(tmp_path, setting, stem, cut):
    job = toy.job(toy.recipe(setting, "flexround", 3, 4), stem_output_bits=stem, iters=0, a_iters=0)
    blocks = cut(job.model)
    found = toy.run(dataclasses.replace(job, blocks=blocks, weights=Resident(blocks)), tmp_path)[0]
    grids = [quantizer.grid for block in blocks for quantizer in attach.quantizers(block)]
    low = 2**4 - 1
    assert [grid.qmax for grid in grids] == [255 if stem == 8 else low, low, low, low, 255]
    assert {grid.qmin for grid in grids} == {0}
    wide = {key for key, codes in found.items() if key.endswith(":codes") and codes.abs().max() > low}
    assert wide == {"weight/stem:codes", "weight/head:codes"}


class Sometimes(torch.nn.Module):
    """Calls a layer for some rows alone, and its layers in another order than it registers them."""

    def __init__(self):
        super().__init__()
        self.last, self.some, self.first = (torch.nn.Linear(6, 6) for _ in range(3))

    def forward(self, x):
        y, chosen = torch.relu(self.first(x)), x[:, 0] > 0
        if chosen.any():
            y[chosen] += 3 * self.some(y[chosen]).abs()
        return self.last(y) + x


def test_initial_steps_in_parts_are_those_of_all_rows(tmp_path, monkeypatch):
    x = torch.randn(64, 6, generator=torch.Generator().manual_seed(1))
    x[:, 0] = (torch.arange(64) // 8 % 2 - 0.5) * 9

    def steps(directory):
        torch.manual_seed(0)
        net = torch.nn.Sequential(Sometimes(), Sometimes()).eval()
        cut = [Block(n, m, tuple(Site(each, "input") for each in m.children())) for n, m in net.named_children()]
        hyper = toy.job(Q, iters=0, a_iters=0, batch=8).hyper
        found = toy.run(toy.job_of(net, cut, toy.recipe("B", "rtn", 4, 4), hyper), directory, x=x)[0]
        return {key: value for key, value in found.items() if key.startswith("activation/") and key.endswith("step")}

    whole = steps(tmp_path / "whole")
    monkeypatch.setattr(initial, "AT_ONCE", 0)
    parts = steps(tmp_path / "parts")
    assert len(whole) == 6
    for key, step in whole.items():
        torch.testing.assert_close(parts[key], step, rtol=1e-6, atol=0)


def test_b_learns_steps_after_the_weights_and_q_jointly(tmp_path):
    few = {"iters": 5, "a_iters": 5}
    b_weights = reconstruct(tmp_path, toy.recipe("B", "flexround", 3), **few)[0]
    b, records, _ = reconstruct(tmp_path, toy.recipe("B", "flexround", 3, 4), **few)
    assert [r["phase"] for r in records] == ["weights"] * 4 + ["steps"] * 4
    assert all(torch.equal(b[key], b_weights[key]) for key in b_weights), "activations must not touch B's weights"
    q, records, _ = reconstruct(tmp_path, Q, **few)
    assert [r["phase"] for r in records] == ["weights"] * 4
    frozen = reconstruct(tmp_path, Q, a_lr=1e-12, **few)[0]
    key = "activation/body.0/output:step"
    assert not torch.equal(q[key], frozen[key]), "Q must learn the steps"


@pytest.mark.parametrize("setting", ["B", "Q"])
def test_memory_does_not_grow_from_block_to_block(tmp_path, monkeypatch, setting):
    """All that is as large as the activations of all samples is a cache: how many of them are alive after a block?"""
    caches, alive, empty = [], [], Store.empty

    def watched(*arguments):
        made = empty(*arguments)
        caches.append(StorageWeakRef(made.untyped_storage()))
        return made

    def count():
        alive.append(sum(not cache.expired() for cache in caches))

    monkeypatch.setattr(Store, "empty", watched)
    monkeypatch.setattr(memory, "return_freed_memory", count)
    recipe = toy.recipe(setting, "flexround", 3, 4)
    toy.run(toy.job(recipe, net=toy.model(depth=4), iters=2, a_iters=2), tmp_path)
    assert len(alive) == (12 if setting == "B" else 6)
    assert max(alive) == 3, "the samples and what a block carries on"


@pytest.mark.parametrize("setting", ["B", "Q"])
def test_a_block_that_begins_in_place_changes_no_cache(tmp_path, setting):
    found = []
    for inplace in (False, True):
        layers = [nn.Sequential(nn.SiLU(inplace=inplace), nn.Conv2d(3, 3, 3, padding=1)) for _ in range(3)]
        for seed, layer in enumerate(layers):
            layer[1].weight.data = torch.randn(3, 3, 3, 3, generator=torch.Generator().manual_seed(seed))
            layer[1].bias.data.zero_()
        net = nn.Sequential(*layers)
        cut = [Block(name, layer, (Site(layer[1], "input"),)) for name, layer in net.named_children()]
        hyper = Hyper.model_validate(toy.HYPER)
        job = toy.job_of(net, cut, toy.recipe(setting, "flexround", 3, 4), hyper)
        found.append(toy.run(job, tmp_path / str(inplace))[:2])
    assert toy.same(found[0][0], found[1][0])
    errors = [[(each.get("error_rtn"), each["error_hard"]) for each in records] for _, records in found]
    assert errors[0] == errors[1]


def test_what_is_not_finite_stops_with_the_block(tmp_path):
    net = toy.model()
    net.body[1].conv1.weight.data[0] = torch.nan
    with pytest.raises(NumericalError, match=r"block body\.1: its full-precision output holds NaN or Inf"):
        reconstruct(tmp_path, toy.recipe("B", "gptq", 3), net=net)


def test_what_diverges_stops_with_block_and_iteration(tmp_path):
    with pytest.raises(NumericalError, match=r"block stem.*iteration \d"):
        reconstruct(tmp_path, toy.recipe(), lr=1e30)
