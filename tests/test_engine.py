"""The reconstruction engine on a toy network: settings B and Q, determinism, invariants, records, errors."""

import copy
import dataclasses
import gc

import pytest
import torch
import toy
from torch import nn
from torch.nn.utils import parametrize

from flexround.errors import InputError, NumericalError
from flexround.machine import memory
from flexround.models.blocks import Block, Site
from flexround.models.blocks import run as run_blocks
from flexround.models.surgery import attach
from flexround.reconstruct import engine, phases
from flexround.reconstruct.cache import Store
from flexround.reconstruct.weights import Resident
from flexround.settings.schema import Recipe

LR = {
    "adaround": 2e-2,
    "adaquant": {"v": 1e-3, "s1": 1e-3},
    "flexround": 3e-3,
    "adaquant-flexround": {"v": 1e-4, "scales": 3e-3},
}
SETTINGS = {
    "adaround": {"schedule": "none", "reg_weight": 0.01},
    "signround": {"optimizer": "sign", "schedule": "linear", "iters": 100, "lr": 0.01},
    "gptq": {"iters": 0, "a_iters": 0},
}


def reconstruct(tmp_path, recipe, seed=0, net=None, x=None, **hyper):
    hyper = {"lr": LR.get(recipe.rounding, 1e-3)} | SETTINGS.get(recipe.rounding, {}) | hyper
    return toy.run(toy.job(recipe, seed, net, **hyper), tmp_path, x=x)


def output_error(model, x=None):
    x = toy.samples() if x is None else x
    with torch.no_grad():
        return (model(x) - toy.model()(x)).square().sum().item()


def described(value):
    return f"{value.setting}-{value.rounding}" if isinstance(value, Recipe) else "-".join(map(str, value.values()))


@pytest.mark.parametrize(
    ("recipe", "hyper"),
    [
        *(
            (toy.recipe(setting, rounding, 3, 4), {"iters": 150})
            for rounding in ("adaround", "adaquant", "flexround", "adaquant-flexround", "lrq")
            for setting in ("B", "Q")
        ),
        *(
            (toy.recipe("B", "signround", 3), {"w_scheme": scheme, "w_granularity": granularity})
            for scheme in ("symmetric", "asymmetric")
            for granularity in ("tensor", "channel")
        ),
        *(
            (toy.recipe(setting, "gptq", 3, a_bits, act_order=act_order), {})
            for setting, a_bits in (("B", None), ("B", 4), ("Q", 4))
            for act_order in (False, True)
        ),
    ],
    ids=described,
)
def test_every_rounding_beats_round_to_nearest_and_what_is_stored_is_what_was_learned(tmp_path, recipe, hyper):
    nearest = recipe.model_copy(update={"rounding": "rtn", "options": {}})
    expected = reconstruct(tmp_path, nearest, **hyper | {"iters": 0, "a_iters": 0})[2]
    tensors, _, model = reconstruct(tmp_path, recipe, **hyper)
    assert output_error(model) < 0.8 * output_error(expected)
    for name in ("body.0.conv1", "body.1.conv2"):
        codes, zero_point, step = (tensors[f"weight/{name}:{part}"] for part in ("codes", "zero_point", "step"))
        torch.testing.assert_close((codes.float() - zero_point) * step, model.get_submodule(name).weight)


def test_rtn_result_is_nearest_rounding_of_every_weight_with_8_bit_ends(tmp_path):
    tensors, _, model = reconstruct(tmp_path, toy.recipe("B", "rtn", 3))
    for name, bits in {"stem": 8, "body.0.conv1": 3, "body.1.conv2": 3, "head": 8}.items():
        weight, step = toy.model().get_submodule(name).weight, tensors[f"weight/{name}:step"]
        top = 2 ** (bits - 1)
        expected = (weight / step).round().clamp(-top, top - 1)
        assert torch.equal(tensors[f"weight/{name}:codes"].float(), expected)
        torch.testing.assert_close(model.get_submodule(name).weight, expected * step)


@pytest.mark.parametrize("setting", ["B", "Q"])
def test_the_seed_decides_the_bits_and_the_global_generator_does_not(tmp_path, setting):
    results = []
    for noise, seed in ((0, 0), (1, 0), (0, 1)):
        torch.manual_seed(noise)
        results.append(reconstruct(tmp_path, toy.recipe(setting, "flexround", 3, 4), seed)[0])
    one, same, other = results
    assert toy.same(one, same)
    assert any(not torch.equal(one[key], other[key]) for key in one)


def test_stem_is_left_at_rtn_unless_reconstructed(tmp_path):
    rtn = reconstruct(tmp_path, toy.recipe("B", "rtn", 3))[0]["weight/stem:codes"]
    fixed = reconstruct(tmp_path, toy.recipe(), reconstruct_stem=False, stem_bits=3)[0]["weight/stem:codes"]
    learned = reconstruct(tmp_path, toy.recipe(), reconstruct_stem=True, stem_bits=3, lr=3e-2)[0]["weight/stem:codes"]
    assert not torch.equal(learned, fixed)
    assert not torch.equal(rtn, fixed), "3 and 8 bit codes differ"


@pytest.mark.parametrize("setting", ["B", "Q"])
def test_a_first_block_of_several_layers_is_no_stem_and_is_learned(tmp_path, setting):
    whole = toy.job(toy.recipe(setting, "flexround", 3, 4), reconstruct_stem=False, lr=3e-2)
    layers = ("stem", "body.0.conv1", "body.0.conv2", "body.1.conv1", "body.1.conv2", "head")
    sites = tuple(Site(whole.model.get_submodule(name), "input") for name in layers[1:])
    job = dataclasses.replace(whole, blocks=[Block("network", whole.model, sites)])
    records = toy.run(dataclasses.replace(job, weights=Resident(job.blocks)), tmp_path)[1]
    assert all(record["learned"] for record in records)
    assert records[0]["nearest"] == []
    assert all(records[0]["error_hard"] < records[0]["error_rtn"] for _ in layers)


@pytest.mark.parametrize(("setting", "stem"), [("B", 8), ("Q", "low")])
def test_activation_sites_have_the_settings_bits_and_one_sided_grids(tmp_path, setting, stem):
    _, _, model = reconstruct(tmp_path, toy.recipe(setting, "flexround", 3, 4), stem_output_bits=stem)
    tops = [q.grid.qmax for block in toy.blocks(model) for q in attach.quantizers(block)]
    low = 2**4 - 1
    assert tops == [255 if stem == 8 else low, low, low, low, 255]
    assert all(q.grid.qmin == 0 for block in toy.blocks(model) for q in attach.quantizers(block))


def test_b_learns_steps_on_full_precision_inputs_after_the_weights_and_q_jointly(tmp_path):
    b_weights = reconstruct(tmp_path, toy.recipe("B", "flexround", 3))[0]
    b, records, _ = reconstruct(tmp_path, toy.recipe("B", "flexround", 3, 4))
    assert [r["phase"] for r in records] == ["weights"] * 4 + ["steps"] * 4
    assert all(torch.equal(b[key], b_weights[key]) for key in b_weights), "activations must not touch B's weights"
    q, records, _ = reconstruct(tmp_path, toy.recipe("Q", "flexround", 3, 4))
    assert [r["phase"] for r in records] == ["weights"] * 4
    frozen = reconstruct(tmp_path, toy.recipe("Q", "flexround", 3, 4), a_lr=1e-12)[0]
    key = "activation/body.0/output:step"
    assert not torch.equal(q[key], frozen[key]), "Q must learn the steps"


def test_a_gpu_without_memory_is_told_with_block_bytes_and_way_out_and_what_is_done_is_kept(tmp_path, monkeypatch):
    recipe, expected = toy.recipe("Q", "flexround", 3, 4), toy.straight("Q", "flexround", 3, 4)
    learn = phases.WeightPhase.learn
    seen = []

    def full(self, index, carry):
        seen.append(index)
        if index == 2:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total of 79 GiB")
        return learn(self, index, carry)

    message = (
        r"^block body\.1, phase weights, activations in memory: the GPU's memory is too small: 2\.68 GB asked for, "
        r".*; try cache-mb 0 \(activations in files\), cache_dtype bfloat16, precision bfloat16, batch below 16, a_init"
    )
    with monkeypatch.context() as patch:
        patch.setattr(phases.WeightPhase, "learn", full)
        with pytest.raises(InputError, match=message):
            toy.run(toy.job(recipe), tmp_path / "s")
        seen.clear()
        patch.setattr(phases.WeightPhase, "learn", lambda self, *args: seen.append(args[0]) or learn(self, *args))
        found = toy.run(toy.job(recipe), tmp_path / "s")[0]
    assert seen == [2, 3]
    assert toy.same(found, expected)


def test_what_is_advised_is_what_helps_there(tmp_path):
    gpu, host = Store(torch.device("cuda")), Store(torch.device("cpu"))
    plain = toy.job(toy.recipe("Q", "flexround", 3, 4), cache_dtype="float32", precision="float32")
    on_gpu = dataclasses.replace(plain, device=torch.device("cuda"))
    small = toy.job(toy.recipe("Q", "flexround", 3, 4), cache_dtype="bfloat16", precision="bfloat16")
    numbers = [f"batch below {plain.hyper.batch}", f"a_init_samples below {plain.hyper.a_init_samples}"]
    types = ["cache_dtype bfloat16", "precision bfloat16"]
    to_host = "gpu-cache-mb 0 (activations in the host's memory)"
    assert engine._smaller(on_gpu, gpu, tmp_path) == [to_host, *types, *numbers]
    assert engine._smaller(on_gpu, host, tmp_path) == [*types, *numbers]
    assert engine._smaller(plain, host, None) == [*types, *numbers], "nothing is written"
    assert engine._smaller(plain, host, tmp_path) == ["cache-mb 0 (activations in files)", *types, *numbers]
    assert engine._smaller(small, dataclasses.replace(host, directory=tmp_path), tmp_path) == numbers


@pytest.mark.parametrize("setting", ["B", "Q"])
def test_memory_does_not_grow_from_block_to_block(tmp_path, monkeypatch, setting):
    bytes_after = []

    def measure():
        gc.collect()
        stores = {each.untyped_storage() for each in gc.get_objects() if type(each) in (torch.Tensor, nn.Parameter)}
        bytes_after.append(sum({store.data_ptr(): store.nbytes() for store in stores}.values()))

    monkeypatch.setattr(memory, "return_freed_memory", measure)
    gc.freeze()  # what the tests before have left is not looked at
    try:
        toy.run(toy.job(toy.recipe(setting, "flexround", 3, 4), net=toy.model(depth=6), iters=3, a_iters=3), tmp_path)
    finally:
        gc.unfreeze()
    after_body = torch.tensor(bytes_after[1:7])  # without the stem and the head, whose activations have other sizes
    activation = 64 * 8 * 8 * 8 * 4
    assert after_body.diff().max() < activation / 2, "a block leaves its weights, 5 kB, and no activation"


def test_records_hold_errors_losses_seconds_and_memory(tmp_path):
    _, records, _ = reconstruct(tmp_path, toy.recipe("B", "adaround", 2), iters=200)
    keys = ["block", "error_rtn", "error_soft", "error_hard", "loss_before", "loss_after", "seconds", "peak_mb"]
    assert all(set(keys) <= set(record) for record in records)
    assert max(records[1]["error_soft"], records[1]["error_hard"]) < records[1]["error_rtn"]


def test_samples_and_reference_stay_and_nothing_of_the_machinery_is_left_on_the_model(tmp_path):
    x, net = toy.samples(), toy.model()
    before, weights = x.clone(), copy.deepcopy(net.state_dict())
    model = reconstruct(tmp_path, toy.recipe("Q", "flexround", 3, 4), net=net, x=x)[2]
    assert torch.equal(x, before)
    assert toy.same(net.state_dict(), weights)
    assert not any(parametrize.is_parametrized(module) for module in model.modules())
    assert not any(parameter.requires_grad for parameter in model.parameters())
    with torch.no_grad():
        assert torch.equal(model(x), model(x)), "dropping must be off"
        assert torch.equal(run_blocks(toy.blocks(model), x), model(x))


@pytest.mark.parametrize(
    ("setting", "rounding", "bad"),
    [("B", "flexround", float("nan")), ("Q", "flexround", float("inf")), ("B", "gptq", float("inf"))],
)
def test_a_sample_that_is_not_finite_stops_with_the_block(tmp_path, setting, rounding, bad):
    x = toy.samples()
    x[5] = bad
    with pytest.raises(NumericalError, match=r"block stem: .* NaN or Inf, as do values in the calibration samples$"):
        reconstruct(tmp_path, toy.recipe(setting, rounding, 3, 4), x=x)


def test_a_weight_that_is_not_finite_is_named(tmp_path):
    net = toy.model()
    net.body[1].conv1.weight.data[0, 0] = float("inf")
    with pytest.raises(NumericalError, match=r"block body\.1: .* NaN or Inf, as do values in .* conv1\.weight$"):
        reconstruct(tmp_path, toy.recipe(), net=net)


def test_what_diverges_stops_with_block_and_iteration(tmp_path):
    with pytest.raises(NumericalError, match=r"block stem.*iteration \d"):
        reconstruct(tmp_path, toy.recipe(), lr=1e30)


def test_dead_channels_are_reported_and_quantized_to_zero(tmp_path, caplog):
    net = toy.model()
    net.body[0].conv1.weight.data[2] = 0
    tensors = reconstruct(tmp_path, toy.recipe(), net=net, w_granularity="channel")[0]
    assert "body.0.conv1.weight: 1 all-zero channels" in caplog.text
    assert (tensors["weight/body.0.conv1:codes"][2] == 0).all()


def test_a_rounding_outside_the_package_is_used(tmp_path):
    recipe = toy.recipe("B", "own_rounding:AlwaysDown", 3)
    tensors = reconstruct(tmp_path, recipe)[0]
    weight = toy.model().body[0].conv1.weight
    step = tensors["weight/body.0.conv1:step"]
    assert torch.equal(tensors["weight/body.0.conv1:codes"].float(), (weight / step).floor().clamp(-4, 3))
