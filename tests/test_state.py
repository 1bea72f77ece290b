"""Resume after a kill at any moment with the same bits; which files the state holds, and when."""

import contextlib
import itertools
import os
import random
import signal

import pytest
import torch
import toy
from forks import Fork, killed_at

from flexround.io import resume
from flexround.reconstruct import engine, state
from flexround.reconstruct.cache import Store
from flexround.reconstruct.codes import Part
from flexround.reconstruct.state import PROGRESS, State

KILLS = 10
B = toy.recipe("B", "flexround", 3, 4)
FEW = {"iters": 2, "a_iters": 2}


def killed_after(count, action):
    """Run ``action`` in a fork that is killed at a rename, an encoding or an optimiser step; return its exit code."""

    def dying(_):
        killed_at(count, (os, "replace"), (state.codes, "encode"), (torch.optim.Adam, "step"))
        action()

    return Fork(dying).ended(seconds=300)


@pytest.mark.parametrize("setting", ["B", "Q"])
def test_killed_at_random_moments_it_gives_the_same_bits(tmp_path, setting):
    """At least ten kill points in each setting: within blocks, between files, between a rename and the next."""
    torch.set_num_threads(1)
    rng, recipe = random.Random(setting), toy.recipe(setting, "flexround", 3, 4)
    expected = toy.straight(setting, "flexround", 3, 4)  # first: no child has to import what an optimizer does
    for _ in range(KILLS):
        code = killed_after(rng.randint(1, 27), lambda: toy.run(toy.job(recipe), tmp_path / "killed"))
        assert code == -signal.SIGKILL, "the run ended before all kill points were used: make it longer"
    assert toy.same(toy.run(toy.job(recipe), tmp_path / "killed")[0], expected)


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


@pytest.mark.parametrize(
    ("after", "caches"),
    [
        (1, ("full", "quantized")),
        (4, ()),
        (6, ("full", "initial")),
    ],
)
def test_finished_blocks_are_not_computed_again(tmp_path, after, caches, monkeypatch, computed):
    """The state holds the activations of one block."""
    directory = interrupted(tmp_path, after, B, monkeypatch)
    with contextlib.suppress(Stop), resume.kept(directory):
        assert set(resume.load(PROGRESS)[0]) == set(caches)
        raise Stop
    computed.clear()
    found, records, _ = toy.run(toy.job(B), tmp_path)
    assert computed == [0, 1, 2, 3, 0, 1, 2, 3][after:]
    assert toy.same(found, toy.straight("B", "flexround", 3, 4))
    assert [record["block"] for record in records] == ["stem", "body.0", "body.1", "head"] * 2
    assert not (tmp_path / "run").exists()


def test_a_cache_comes_back_with_its_layout(tmp_path):
    """The order in memory decides the last bits of what is computed from a cache."""
    store = Store(torch.device("cpu"), keeps_strides=True)
    images = torch.arange(48.0).view(2, 3, 2, 4)
    carry = {"last": images.contiguous(memory_format=torch.channels_last), "tokens": torch.ones(2, 3, 4).mT}
    with contextlib.suppress(Stop), State(tmp_path, "f").opened() as state:
        state.commit("weights/000", Part({}, {}), carry)
        raise Stop
    with State(tmp_path, "f").opened() as state:
        found = state.carry(store)
    for name, value in carry.items():
        assert torch.equal(found[name], value)
        assert found[name].stride() == value.stride()
