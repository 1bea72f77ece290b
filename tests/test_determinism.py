"""A reconstruction has the same bits whatever hash seed, locale and time zone are (docs/determinism.md)."""

import os
import subprocess
import sys
from pathlib import Path

import torch
import toy

from flexround.machine.seeding import derive

SAVE = "import sys, torch, toy; torch.set_num_threads(1); torch.save(toy.straight('Q', 'flexround', 3, 4), sys.argv[1])"


def test_hash_seed_locale_and_time_zone_change_no_bit(tmp_path):
    """Those of this process are other ones."""
    directory = tmp_path / "run with a space"
    directory.mkdir()
    environment = {"PYTHONHASHSEED": "7", "LC_ALL": "C", "TZ": "Pacific/Auckland", "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join((str(Path(toy.__file__).parent), os.environ.get("PYTHONPATH", "")))
    command = [sys.executable, "-c", SAVE, "found.pt"]
    subprocess.run(command, cwd=directory, env=os.environ | environment, check=True)
    torch.set_num_threads(1)
    assert toy.same(torch.load(directory / "found.pt"), toy.straight("Q", "flexround", 3, 4))


def test_other_settings_have_another_seed_and_digest():
    """Also those that Python takes for equal or for nothing, and the same text divided otherwise."""
    parts = [(0,), (False,), (None,), ("",), (), (1,), (True,), (1.0,), ("ab", "c"), ("a", "bc"), ("abc",), ("c", "ab")]
    assert len({derive(*each) for each in parts}) == len(parts) - 1, "no part is an empty one"
