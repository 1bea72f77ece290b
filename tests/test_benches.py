"""Samples of the benches of kills and of full disks: they notice what they are there for."""

import contextlib
import itertools
import random

import kills
import pytest

from flexround.io import resume, sources


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
