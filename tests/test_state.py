"""Resume after a kill at any moment with the same bits; damaged state; what is written, and when."""

import itertools
import os
import random
import signal

import pytest
import torch
import toy
from forks import Fork, killed_at

from flexround.errors import InputError
from flexround.io import artifacts
from flexround.reconstruct import engine, state
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
def test_killed_at_random_moments_it_continues_with_the_same_bits(tmp_path, setting):
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
        (1, ("weights-000.full", "weights-000.quantized")),
        (4, ()),
        (6, ("steps-001.full", "steps-001.initial")),
    ],
)
def test_finished_blocks_are_not_computed_again(tmp_path, after, caches, monkeypatch, computed):
    """The state holds the activations of one block."""
    directory = interrupted(tmp_path, after, B, monkeypatch)
    assert {path.name for path in directory.glob("*.cache")} == {f"{name}.cache" for name in caches}
    computed.clear()
    found, records, _ = toy.run(toy.job(B), tmp_path)
    assert computed == [0, 1, 2, 3, 0, 1, 2, 3][after:]
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


@pytest.mark.parametrize("position", ["weights/001", "weights/003"])
def test_what_goes_wrong_while_writing_ends_the_run(tmp_path, monkeypatch, position):
    commit = State.commit

    def full(self, where, *rest):
        if where == position:
            raise InputError("no space left")
        commit(self, where, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(State, "commit", full)
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
