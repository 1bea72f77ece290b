"""Samples of the benches of kills and of full disks: they notice what they are there for."""

import contextlib
import itertools
import random

import kills
import pytest

from flexround.io import artifacts, resume, sources


@pytest.fixture
def rng(monkeypatch):
    for owner, name in ((resume, "WORTH_SECONDS"), (sources, "verify")):
        monkeypatch.setattr(owner, name, getattr(owner, name))  # the bench sets them for good
    return random.Random(1)


def test_killed_stages_leave_what_an_undisturbed_run_does(tmp_path, rng):
    assert list(itertools.islice(kills.kill_stages(tmp_path / "work", rng, "calibrate"), 4)) == ["calibrate"] * 4


def test_stages_that_meet_a_full_disk_say_so_and_leave_what_an_undisturbed_run_does(tmp_path, rng):
    with contextlib.ExitStack() as stack:
        try:
            disk = stack.enter_context(kills.disk(tmp_path))
        except SystemExit as end:
            pytest.skip(f"only root may mount: {end}")
        assert list(itertools.islice(kills.fill_disk(disk, rng, "calibrate"), 2)) == ["calibrate"] * 2


def test_a_half_written_result_that_looks_whole_is_noticed(tmp_path):
    (tmp_path / "file.bin").write_bytes(b"whole")
    artifacts.write_manifest(tmp_path, ["file.bin"])
    stage = kills.Stage("stage", lambda: None, (tmp_path,))
    kills.check_whole(stage)
    (tmp_path / "file.bin").write_bytes(b"half")
    with pytest.raises(kills.Wrong, match="half a result looks whole"):
        kills.check_whole(stage)


@pytest.mark.parametrize("change", ["left over", "missing", "other bits"])
def test_a_result_that_differs_after_a_kill_is_noticed(tmp_path, change):
    (tmp_path / "results").mkdir()
    (tmp_path / "results/one").write_text("1")
    expected = kills.hashes(tmp_path)
    kills.check_equal(tmp_path, expected, "stage")
    if change == "missing":
        (tmp_path / "results/one").unlink()
    else:
        (tmp_path / "results" / ("one" if change == "other bits" else ".one.half")).write_text("2")
    with pytest.raises(kills.Wrong, match=change):
        kills.check_equal(tmp_path, expected, "stage")
