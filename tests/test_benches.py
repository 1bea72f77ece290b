"""Samples of the benches of planted defects and of kills: they notice what they are there for."""

import contextlib
import random
import re
import subprocess
import sys

import full_disk
import kills
import mutants
import pytest

from flexround import artifacts, unfinished
from flexround.settings.layout import ROOT
from flexround.stages import finetune

MUTANTS = mutants.read()


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_every_defect_can_be_planted_and_its_tests_exist(mutant):
    text = (ROOT / "src/flexround" / mutant.file).read_text()
    compile(mutant.planted(text), mutant.file, "exec")
    for test in mutant.tests:
        file, _, name = test.partition("::")
        assert not name or re.search(rf"^def {name}\(", (ROOT / "tests" / file).read_text(), re.MULTILINE), test


def test_there_are_enough_defects_with_names_of_their_own():
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 60


ATTEMPTS = """
import sys
from pathlib import Path
sys.path.insert(0, "bench")
import mutants
tree, logs = map(Path, sys.argv[1:])
guard = next(mutant for mutant in mutants.read() if mutant.name == "cells: the mean instead of the median")
before = (tree / "src/flexround" / guard.file).read_text()
print(mutants.attempt(guard, tree, logs) == mutants.FAILED, (tree / "src/flexround" / guard.file).read_text() == before)
print(mutants.attempt(guard._replace(new="statistics.median(+t.value"), tree, logs) == 0)
"""


def test_a_defect_is_caught_and_a_harmless_change_survives(tmp_path):
    tree = mutants.copy(tmp_path / "project")
    command = [sys.executable, "-c", ATTEMPTS, str(tree), str(tmp_path)]  # a process with few modules, as the bench's
    assert (
        subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout == "True True\nTrue\n"
    )


def test_killed_stages_leave_what_an_undisturbed_run_does(tmp_path, monkeypatch):
    for owner, name in ((unfinished, "WORTH_SECONDS"), (finetune.sources, "verify")):
        monkeypatch.setattr(owner, name, getattr(owner, name))  # the bench sets them for good
    found = list(kills.kill_stages(tmp_path / "work", 4, random.Random(1), "calibrate", float("inf")))
    assert len(found) >= 4


def test_stages_that_meet_a_full_disk_say_so_and_leave_what_an_undisturbed_run_does(tmp_path, monkeypatch):
    for owner, name in ((unfinished, "WORTH_SECONDS"), (finetune.sources, "verify")):
        monkeypatch.setattr(owner, name, getattr(owner, name))  # the bench sets them for good
    with contextlib.ExitStack() as stack:
        try:
            disk = stack.enter_context(full_disk.Disk(tmp_path))
        except SystemExit as end:
            pytest.skip(f"only root may mount: {end}")
        assert list(full_disk.fill(disk, 2, random.Random(1), "calibrate")) == ["calibrate"] * 2


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
