"""A copied clone doesn't run the code of the clone that it was copied from."""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import flexround
from flexround import clone
from flexround.errors import InputError

ROOT = Path(__file__).resolve().parent.parent


def test_the_code_of_another_clone_is_refused(tmp_path):
    (tmp_path / "src").mkdir()
    shutil.copytree(ROOT / "src/flexround", tmp_path / "src/flexround", ignore=lambda *_: ["library", "mini", "tasks"])
    with pytest.raises(InputError, match=rf"would run the code of {ROOT}.*rm -rf .venv"):
        clone.check(flexround.__spec__, tmp_path)
    clone.check(importlib.util.spec_from_file_location("flexround", tmp_path / "src/flexround/__init__.py"), tmp_path)


def test_without_code_of_its_own_a_directory_uses_any(tmp_path):
    clone.check(flexround.__spec__, tmp_path)
    clone.check(None, ROOT)


@pytest.mark.parametrize("command", [["snakemake", "-n", "results/table13.csv"], ["-m", "flexround.tools.verify"]])
def test_the_terminal_says_so_in_one_line(tmp_path, command):
    for name in ("src", "workflow", "profiles", "params", "Snakefile"):
        (shutil.copytree if (ROOT / name).is_dir() else shutil.copy2)(ROOT / name, tmp_path / name)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "PYTHONPATH": str(ROOT / "src")}
    program = command if command[0] == "snakemake" else [sys.executable, *command]
    done = subprocess.run(program, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    said = [line for line in (done.stdout + done.stderr).splitlines() if "would run the code of" in line]
    assert len(said) == 1
    assert "Traceback" not in done.stderr
