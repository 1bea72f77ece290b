"""Resume after a kill at any moment with the same bits; foreign and damaged state."""

import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
import traceback

import pytest
import torch
import toy

from flexround import artifacts
from flexround.errors import InputError
from flexround.reconstruct import engine
from flexround.reconstruct.state import PROGRESS, State

KILLS = 10


def in_child(action):
    """Run ``action`` in a forked process (which need not import torch again); return its exit code."""
    pid = os.fork()
    if pid == 0:
        try:
            action()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def killed_after(count, action):
    """Run ``action`` in a child that kills itself at its ``count``-th rename, hash or optimiser step."""
    calls = itertools.count(1)

    def counted(function):
        def wrapper(*args, **kwargs):
            if next(calls) >= count:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **kwargs)

        return wrapper

    def patched():
        os.replace = counted(os.replace)
        artifacts.sha256 = counted(artifacts.sha256)
        torch.optim.Adam.step = counted(torch.optim.Adam.step)
        action()

    return in_child(patched)


@pytest.mark.parametrize("setting", ["B", "Q"])
def test_killed_at_random_moments_it_continues_with_the_same_bits(tmp_path, setting):
    """At least ten kill points in each setting: within blocks, between files, between a rename and the next."""
    torch.set_num_threads(1)
    recipe = toy.recipe(setting, "flexround", 3, 4)
    expected = toy.run(toy.job(recipe), tmp_path / "straight")[0]
    rng = random.Random(setting)
    for _ in range(KILLS):
        code = killed_after(rng.randint(1, 70), lambda: toy.run(toy.job(recipe), tmp_path / "killed"))
        assert code in (0, -signal.SIGKILL)
        if code == 0:
            break
    assert code == -signal.SIGKILL, "the run ended before all kill points were used: make it longer"
    found = toy.run(toy.job(recipe), tmp_path / "killed")[0]
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[key], expected[key]) for key in expected)


def test_killed_from_outside_it_continues(tmp_path):
    recipe = toy.recipe("Q", "flexround", 3, 4)
    expected = toy.run(toy.job(recipe), tmp_path / "straight")[0]
    command = [sys.executable, toy.__file__, str(tmp_path / "state"), "Q", str(tmp_path / "out.pt")]
    process = subprocess.Popen(command)
    deadline = time.time() + 60
    while not list((tmp_path / "state").rglob(PROGRESS)) and time.time() < deadline:
        time.sleep(0.005)
    process.kill()
    process.wait()
    assert list((tmp_path / "state").rglob(PROGRESS)), "killed before the first block was done"
    found = toy.run(toy.job(recipe), tmp_path / "state")[0]
    assert all(torch.equal(found[key], expected[key]) for key in expected)


class Stop(Exception):
    pass


def interrupted(directory, after, recipe, monkeypatch, fingerprint="f" * 16):
    """Run until ``after`` blocks are committed, and what is in no block, then raise."""
    commit = State.commit
    calls = []

    def counting(self, *args):
        commit(self, *args)
        calls.append(1)
        if len(calls) == after + 1:
            raise Stop

    with monkeypatch.context() as patch:
        patch.setattr(State, "commit", counting)
        with pytest.raises(Stop):
            toy.run(toy.job(recipe), directory, fingerprint)
    return directory / "run" / fingerprint


@pytest.mark.parametrize("after", [1, 3, 4, 6])
def test_finished_blocks_are_not_computed_again(tmp_path, after, monkeypatch):
    recipe = toy.recipe("B", "flexround", 3, 4)
    expected, straight, _ = toy.run(toy.job(recipe), tmp_path / "straight")
    interrupted(tmp_path / "s", after, recipe, monkeypatch)
    seen = []
    timed = engine._timed
    monkeypatch.setattr(engine, "_timed", lambda *args: seen.append(1) or timed(*args))
    found, records, _ = toy.run(toy.job(recipe), tmp_path / "s")
    assert len(seen) == 8 - after
    assert all(torch.equal(found[key], expected[key]) for key in expected)
    assert [r["block"] for r in records] == [r["block"] for r in straight]


def test_state_is_removed_at_the_end_and_holds_one_carry_on_the_way(tmp_path, monkeypatch):
    recipe = toy.recipe()
    directory = interrupted(tmp_path, 3, recipe, monkeypatch)
    assert {path.name for path in directory.glob("*.cache")} == {
        "weights-002.full.cache",
        "weights-002.quantized.cache",
    }
    toy.run(toy.job(recipe), tmp_path)
    assert not (tmp_path / "run").exists()


def test_foreign_state_is_refused_and_left_alone(tmp_path, monkeypatch):
    directory = interrupted(tmp_path, 2, toy.recipe(), monkeypatch)
    progress = json.loads((directory / PROGRESS).read_text())
    progress["fingerprint"] = "somebody else's"
    (directory / PROGRESS).write_text(json.dumps(progress))
    before = sorted(path.name for path in directory.iterdir())
    with pytest.raises(InputError, match="belongs to another run"):
        toy.run(toy.job(toy.recipe()), tmp_path)
    assert sorted(path.name for path in directory.iterdir()) == before


def test_state_of_other_settings_is_not_used(tmp_path, monkeypatch, caplog):
    caplog.set_level("INFO")
    interrupted(tmp_path, 2, toy.recipe("B", "adaquant", 3), monkeypatch, "a" * 16)
    expected = toy.run(toy.job(toy.recipe()), tmp_path / "straight")[0]
    found = toy.run(toy.job(toy.recipe()), tmp_path, "b" * 16)[0]
    assert all(torch.equal(found[key], expected[key]) for key in expected)
    assert "not used" in caplog.text


@pytest.mark.parametrize("file", ["weights-000.safetensors", "weights-001.full.cache"])
@pytest.mark.parametrize("damage", ["truncate", "flip", "delete", "progress"])
def test_damaged_state_is_rebuilt_with_a_message(tmp_path, damage, file, monkeypatch, caplog):
    expected = toy.run(toy.job(toy.recipe()), tmp_path / "straight")[0]
    directory = interrupted(tmp_path, 2, toy.recipe(), monkeypatch)
    victim = directory / (PROGRESS if damage == "progress" else file)
    content = victim.read_bytes()
    if damage == "delete":
        victim.unlink()
    elif damage == "flip":
        victim.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    else:
        victim.write_bytes(content[: len(content) // 2])
    found = toy.run(toy.job(toy.recipe()), tmp_path)[0]
    assert "damaged state" in caplog.text
    assert all(torch.equal(found[key], expected[key]) for key in expected)


def test_two_processes_do_not_share_a_run(tmp_path):
    with (
        State(tmp_path / "run", "f" * 16).opened(),
        pytest.raises(InputError, match="another process"),
        State(tmp_path / "run", "f" * 16).opened(),
    ):
        pass


def test_an_unwritable_state_directory_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="choose another --state"), State(tmp_path / "file" / "x", "f" * 16).opened():
        pass
