"""A reconstruction has the same bits whatever hash seed, locale and time zone are (docs/trust.md)."""

import os
import subprocess
import sys
from pathlib import Path

import torch
import toy

from flexround.models import build
from flexround.settings.schema import Checkpoint

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


def test_a_factory_that_draws_its_weights_gives_the_same_in_each_process():
    checkpoint = Checkpoint.model_validate({"model": {"factory": "torchvision.models:resnet18", "blocks": "x:y"}})
    found = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        found.append(build.architecture(checkpoint, {"num_classes": 2}).state_dict())
    assert toy.same(*found)
