"""A reconstruction has the same bits whatever hash seed, locale and time zone are (docs/trust.md)."""

import os
import subprocess
import sys

import torch
import toy


def test_hash_seed_locale_and_time_zone_change_no_bit(tmp_path):
    """Those of this process are other ones."""
    directory = tmp_path / "run with a space"
    directory.mkdir()
    environment = {"PYTHONHASHSEED": "7", "LC_ALL": "C", "TZ": "Pacific/Auckland", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, toy.__file__, "state", "Q", "found.pt"]
    subprocess.run(command, cwd=directory, env=os.environ | environment, check=True)
    torch.set_num_threads(1)
    assert toy.same(torch.load(directory / "found.pt"), toy.straight("Q", "flexround", 3, 4))
