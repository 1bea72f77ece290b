"""Resume after a kill at any moment with the same bits; damaged state; what is written, and when."""

import itertools
import math
import os
import random
import signal
import threading

import pytest
import torch
import toy
from forks import Fork, killed_at

from flexround.errors import InputError
from flexround.io import artifacts
from flexround.jobs import command
from flexround.reconstruct import engine, state
from flexround.reconstruct.state import PROGRESS, State, cadence
from flexround.settings.layout import Run
from flexround.settings.load import load_params
from flexround.settings.plan import Plan

KILLS = 10
CARRIED = 2 * 64 * 8 * 8 * 8 * 4  # bytes that a block of the toy hands on
B = toy.recipe("B", "flexround", 3, 4)
FEW = {"iters": 2, "a_iters": 2}


def killed_after(count, action):
    """Run ``action`` in a fork that is killed at a rename, an encoding or an optimiser step; return its exit code."""

    def dying(_):
        killed_at(count, (os, "replace"), (state.codes, "encode"), (torch.optim.Adam, "step"))
        action()

    return Fork(dying).ended(seconds=300)


@pytest.mark.parametrize(("setting", "budget"), [("B", math.inf), ("B", 2.9 * CARRIED), ("Q", math.inf)])
def test_killed_at_random_moments_it_continues_with_the_same_bits(tmp_path, setting, budget):
    """At least ten kill points in each setting: within blocks, between files, between a rename and the next."""
    torch.set_num_threads(1)
    rng, recipe = random.Random(setting), toy.recipe(setting, "flexround", 3, 4)
    expected = toy.straight(setting, "flexround", 3, 4)  # first: no child has to import what an optimizer does
    for _ in range(KILLS):
        code = killed_after(rng.randint(1, 27), lambda: toy.run(toy.job(recipe), tmp_path / "killed", budget=budget))
        assert code == -signal.SIGKILL, "the run ended before all kill points were used: make it longer"
    assert toy.same(toy.run(toy.job(recipe), tmp_path / "killed", budget=budget)[0], expected)


class Stop(Exception):
    pass


def interrupted(directory, after, recipe, monkeypatch, fingerprint="f" * 16, **options):
    """Run until ``after`` blocks are committed, and what is in no block, then raise."""
    commit, calls = State.commit, itertools.count(1)

    def counting(self, *args):
        commit(self, *args)
        if next(calls) == after + 1:
            raise Stop

    with monkeypatch.context() as patch:
        patch.setattr(State, "commit", counting)
        with pytest.raises(Stop):
            toy.run(toy.job(recipe), directory, fingerprint, **options)
    return directory / "run" / fingerprint


@pytest.fixture
def computed(monkeypatch):
    """The numbers of the blocks that are computed, in their order."""
    seen, timed = [], engine._timed
    monkeypatch.setattr(engine, "_timed", lambda *args: seen.append(args[1]) or timed(*args))
    return seen


@pytest.fixture
def written(monkeypatch):
    """The names of the files of activations that are written."""
    seen, keep = [], State._keep
    monkeypatch.setattr(State, "_keep", lambda self, name, value: seen.append(name) or keep(self, name, value))
    return seen


@pytest.mark.parametrize(
    ("after", "budget", "caches", "kept"),
    [
        (1, math.inf, ("weights-000.full", "weights-000.quantized"), 1),
        (3, 4 * CARRIED, ("weights-001.full", "weights-001.quantized"), 2),
        (4, math.inf, (), 4),
        (6, math.inf, ("steps-001.full", "steps-001.initial"), 6),
    ],
)
def test_finished_blocks_are_not_computed_again_and_the_state_holds_one_carry(
    tmp_path, after, budget, caches, kept, monkeypatch, computed
):
    """Those behind the last activations on the disk are."""
    directory = interrupted(tmp_path, after, B, monkeypatch, budget=budget)
    assert {path.name for path in directory.glob("*.cache")} == {f"{name}.cache" for name in caches}
    computed.clear()
    found, records, _ = toy.run(toy.job(B), tmp_path, budget=budget)
    assert computed == [0, 1, 2, 3, 0, 1, 2, 3][kept:]
    assert toy.same(found, toy.straight("B", "flexround", 3, 4))
    assert [record["block"] for record in records] == ["stem", "body.0", "body.1", "head"] * 2
    assert not (tmp_path / "run").exists()


def test_state_of_other_settings_is_not_used(tmp_path, monkeypatch, caplog):
    caplog.set_level("INFO")
    interrupted(tmp_path, 2, toy.recipe("B", "rtn", 3), monkeypatch, "a" * 16)
    found = toy.run(toy.job(toy.recipe()), tmp_path, "b" * 16)[0]
    assert toy.same(found, toy.straight())
    assert "not used" in caplog.text
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["a" * 16], "only one's own state is removed"


@pytest.mark.parametrize("budget", [4, 1, 0.1])
def test_what_is_written_keeps_to_a_budget(tmp_path, written, budget):
    found = toy.run(toy.job(B), tmp_path, budget=budget * CARRIED)[0]
    assert {name.split(".")[0] for name in written} == ({"weights-001", "steps-001"} if budget == 4 else set())
    assert toy.same(found, toy.straight("B", "flexround", 3, 4))


def test_activations_are_not_written_faster_than_the_pace(tmp_path, written):
    toy.run(toy.job(toy.recipe("B", "rtn", 3)), tmp_path, pace=1.0)
    assert not written


def test_a_run_of_the_largest_network_writes_less_than_100_gb():
    """LLaMA-33B, W8A8: codes, steps, what is in no block, activations; the result twice if the state lies elsewhere."""
    params = load_params("paper")
    config = params.checkpoint("llama-33b").model.args
    hidden, layers, inner = (config[name] for name in ("hidden_size", "num_hidden_layers", "intermediate_size"))
    settings = Plan(params).hyper(Run("paper", "commonsense", "llama-33b", "q-flexround-w8a8", 0))[0]
    codes = layers * (4 * hidden**2 + 3 * hidden * inner)
    steps = layers * 3 * 4 * (5 * hidden + 2 * inner)  # step, first step, zero point of each output channel, float32
    rest = 4 * (2 * 32000 + 2 * layers + 1) * hidden
    for kind in (2, 4):
        carried = 2 * settings.samples * 1024 * hidden * kind
        budget = 1e9 * command.parsed(["reconstruct", "job.json"]).state_gb
        activations = layers // cadence(layers, carried, budget) * carried
        assert 0 < activations <= budget
        assert 2 * (codes + steps + rest) + activations < 100e9


def test_the_next_block_is_learned_while_the_last_one_is_written(tmp_path, monkeypatch):
    started, write, timed = threading.Event(), State._write, engine._timed

    def waiting(self, entry, *rest):
        if entry["position"] == "weights/000":
            assert started.wait(60), "the second block waits for the first one's files"
        write(self, entry, *rest)

    def starting(phase, index, *rest):
        if index == 1:
            started.set()
        return timed(phase, index, *rest)

    monkeypatch.setattr(State, "_write", waiting)
    monkeypatch.setattr(engine, "_timed", starting)
    toy.run(toy.job(toy.recipe(), **FEW), tmp_path)


@pytest.mark.parametrize("position", ["weights/001", "weights/003"])
def test_what_goes_wrong_while_writing_ends_the_run(tmp_path, monkeypatch, position):
    write = State._write

    def full(self, entry, *rest):
        if entry["position"] == position:
            raise InputError("no space left")
        write(self, entry, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(State, "_write", full)
        with pytest.raises(InputError, match="no space left"):
            toy.run(toy.job(toy.recipe()), tmp_path)
    assert toy.same(toy.run(toy.job(toy.recipe()), tmp_path)[0], toy.straight())


def foreign(path):
    artifacts.write_formatted(path, artifacts.read_formatted(path) | {"fingerprint": "somebody else's"})


def truncated(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flipped(path):
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


@pytest.mark.parametrize(
    ("file", "damage"),
    [
        ("weights-000.safetensors", flipped),
        ("weights-000.safetensors", os.unlink),
        ("weights-001.full.cache", truncated),
        (PROGRESS, truncated),
        (PROGRESS, foreign),
    ],
)
def test_damaged_state_is_rebuilt_with_a_message(tmp_path, damage, file, monkeypatch, caplog):
    damage(interrupted(tmp_path, 2, toy.recipe(), monkeypatch) / file)
    found = toy.run(toy.job(toy.recipe()), tmp_path)[0]
    assert "damaged state" in caplog.text
    assert toy.same(found, toy.straight())


def test_a_state_that_is_in_use_or_cannot_be_written_is_refused(tmp_path):
    def opened(directory):
        return State(directory, "f" * 16).opened()

    with opened(tmp_path / "run"), pytest.raises(InputError, match="another process"), opened(tmp_path / "run"):
        pass
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="choose another --state"), opened(tmp_path / "file" / "x"):
        pass


@pytest.mark.parametrize("setting", ["B", "Q"])
def test_old_caches_stay_until_the_progress_names_the_new_ones(tmp_path, monkeypatch, setting):
    """A kill just before the rename finds all that the old progress names, just after it all that the new one does."""
    write, seen = artifacts.write_formatted, []

    def watched(path, content):
        for progress in ([artifacts.read_json(path)] if path.exists() else []) + [content]:
            names = {facts["file"] for facts in [*progress["entries"], *progress["carried"].values()]}
            assert names <= {file.name for file in path.parent.iterdir()}
        seen.append(path)
        write(path, content)

    monkeypatch.setattr(artifacts, "write_formatted", watched)
    toy.run(toy.job(toy.recipe(setting, "flexround", 3, 4), **FEW), tmp_path)
    assert len(seen) > 3
