"""A reconstruction has the same bits whatever hash seed, locale and time zone are (docs/determinism.md)."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

TOY = Path(__file__).with_name("toy.py")


def codes(directory: Path, **environment: str) -> dict[str, torch.Tensor]:
    """Return what a process of its own, in a directory of its own, learns."""
    directory.mkdir()
    command = [sys.executable, str(TOY), "state", "Q", "found.pt"]
    subprocess.run(command, cwd=directory, env=os.environ | {"OMP_NUM_THREADS": "1"} | environment, check=True)
    return torch.load(directory / "found.pt")


@pytest.fixture(scope="module")
def usual(tmp_path_factory):
    return codes(tmp_path_factory.mktemp("usual") / "run", PYTHONHASHSEED="0")


def test_hash_seed_locale_and_time_zone_change_no_bit(usual, tmp_path):
    other = codes(tmp_path / "run with a space", PYTHONHASHSEED="7", LC_ALL="C", TZ="Pacific/Auckland")
    assert other.keys() == usual.keys()
    assert all(torch.equal(other[key], value) for key, value in usual.items())
    assert any(key.endswith(":codes") for key in usual)
