"""A copied clone doesn't run the code of the clone that it was copied from."""

import importlib.util
import os
import re
import subprocess
import sys

import pytest
from project_copy import copy

import flexround
from flexround import clone
from flexround.settings.layout import ROOT


def test_a_clone_runs_its_own_code(tmp_path):
    clone.check(flexround.__spec__, tmp_path)
    clone.check(None, ROOT)
    copy(tmp_path)
    clone.check(importlib.util.spec_from_file_location("flexround", tmp_path / "src/flexround/__init__.py"), tmp_path)


@pytest.mark.parametrize(
    "command", ["snakemake -n results/table13.csv", "flexround.tools.verify", "flexround.jobs gate job.json"]
)
def test_the_code_of_another_clone_is_refused_in_one_line(tmp_path, command):
    project, environment = copy(tmp_path), os.environ | {"PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-m", *command.split()]
    done = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    said = done.stdout + done.stderr
    assert len(re.findall(rf"would run the code of {ROOT}.*rm -rf .venv", said)) == 1
    assert "Traceback" not in said
