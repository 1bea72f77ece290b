"""A CUDA device: every stage of every family runs there, twice with the same bits, and near the CPU's numbers."""

import contextlib
import functools
import shutil
import warnings
from pathlib import Path

import pytest
import torch
import toy
from accelerate.state import AcceleratorState
from own_networks import FEW, Pictures, llama, made, pictures, words
from stage_calls import CHAINS, Work
from test_streamed_stages import NAMES, streamed, write_source

import flexround
from flexround.io import artifacts, sources
from flexround.machine import precision
from flexround.quant import formula
from flexround.reconstruct import phases

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


@pytest.fixture(autouse=True)
def repeatable(monkeypatch):
    """Have a GPU compute as jobs have it, but compile small tensors, too."""
    precision.repeatable()
    monkeypatch.setattr(formula, "LARGE", 0)


@contextlib.contextmanager
def on_cpu():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "is_available", lambda: False)
        AcceleratorState._reset_state(True)
        yield
    AcceleratorState._reset_state(True)


def ran(work, task, checkpoint, recipes):
    """Make all of some recipes; return their metrics, the records of their blocks and the hashes of arrays."""
    AcceleratorState._reset_state(True)
    names = ("full-precision", *recipes)
    metrics = {recipe: work.metrics(task, checkpoint, recipe)["metrics"] for recipe in names}
    records = {recipe: work.quantized(task, checkpoint, recipe) / "record.json" for recipe in recipes}
    blocks = {recipe: artifacts.read_json(path)["blocks"] for recipe, path in records.items()}
    files = (work.root / "results").rglob("*.safetensors")
    return metrics, blocks, {str(path.relative_to(work.root)): artifacts.sha256(path) for path in files}


@pytest.mark.parametrize("family", CHAINS)
def test_a_chain_of_jobs_repeats_its_bits_near_the_cpu(tmp_path, family):
    scale, network, recipes = CHAINS[family]
    run = (*network, recipes)
    work = [Work(Path(__file__).with_name(f"{scale}.yaml"), tmp_path / name) for name in ("one", "two", "cpu")]
    work[0].root.mkdir()
    metrics, blocks, hashes = ran(work[0], *run)
    work[1].root.mkdir()
    assert ran(work[1], *run)[2] == hashes
    shutil.copytree(work[0].root, work[2].root)
    for stage in ("quantized", "evaluated"):
        shutil.rmtree(work[2].root / "results" / work[2].params.scale.name / stage)
    with on_cpu():
        expected, errors, _ = ran(work[2], *run)
    for recipe, records in blocks.items():
        assert {record["caches"] for record in records} == {"on the GPU"}
        # After the first block, what is dropped and single roundings of few iterations decide.
        assert records[0]["error_rtn"] == pytest.approx(errors[recipe][0]["error_rtn"], rel=0.02), recipe
    for name, value in metrics["full-precision"].items():
        assert value == pytest.approx(expected["full-precision"][name], rel=1e-3), name


def test_a_streamed_network_repeats_its_bits_in_half_precision(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "verify", lambda *_: "0" * 64)
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    write_source(tmp_path / "one")
    shutil.copytree(tmp_path / "one", tmp_path / "two", dirs_exist_ok=True)
    runs = [streamed(tmp_path / name, evaluated="float16") for name in ("one", "two")]
    (metrics, _, hashes), (_, _, again) = (ran(work, *NAMES, ("q-flexround-w8a8",)) for work in runs)
    assert hashes == again
    assert metrics["q-flexround-w8a8"]["ppl"] == pytest.approx(metrics["full-precision"]["ppl"], rel=0.05)


def codes(model, x, recipe="q-flexround-w4a4", **options):
    """Return what is found for a network on the GPU, and the report."""
    found = flexround.quantize(model, x, recipe, device="cuda", **FEW | {"batch": 4} | options)
    return {key: value.cpu() for key, value in found.model.state_dict().items()}, found.report


NETWORKS = [(functools.partial(made, Pictures), pictures, "q-flexround-w4a4"), (llama, words, "q-flexround-w8a8")]


@pytest.mark.parametrize(("network", "samples", "recipe"), NETWORKS, ids=["images", "texts"])
def test_place_of_activations_and_kills_change_no_bit(tmp_path, monkeypatch, network, samples, recipe):
    expected, report = codes(network(), samples(), recipe)
    assert {record["caches"] for record in report} == {"on the GPU"}
    found, report = codes(network(), samples(), recipe, state=tmp_path / "host", gpu_cache_mb=0)
    assert {record["caches"] for record in report} == {"in page-locked memory"}
    assert toy.same(found, expected)
    learn = phases.WeightPhase.learn

    def killed(self, index, carry):
        if index == 1:
            raise KeyboardInterrupt
        return learn(self, index, carry)

    for limit in (None, 0):
        options = {"state": tmp_path / f"killed {limit}", "gpu_cache_mb": limit}
        with monkeypatch.context() as patch:
            patch.setattr(phases.WeightPhase, "learn", killed)
            with pytest.raises(KeyboardInterrupt):
                codes(network(), samples(), recipe, **options)
        assert toy.same(codes(network(), samples(), recipe, **options)[0], expected)


@pytest.mark.parametrize("options", [{}, {"gpu_cache_mb": 0}, {"precision": "bfloat16"}, {"fused": True}], ids=str)
@pytest.mark.parametrize(("network", "samples", "recipe"), NETWORKS, ids=["images", "texts"])
def test_no_iteration_waits_for_the_gpu(network, samples, recipe, options):
    def waits(iterations):
        torch.cuda.set_sync_debug_mode("warn")
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                report = codes(network(), samples(), recipe, **options | {"iters": iterations})[1]
        finally:
            torch.cuda.set_sync_debug_mode("default")
        return sum("synchroniz" in str(warning.message) for warning in caught), len(report)

    waits(10)  # compiles
    (few, blocks), (many, _) = waits(20), waits(80)
    assert 0 < many < few + 60, f"{few} and {many} of {blocks} blocks"
