"""The package as its users install it: a wheel, and its core alone in an environment of its own."""

import ast
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

import flexround

ROOT = Path(__file__).resolve().parent.parent
NO_INDEX = r"Failed to fetch|error sending request|dns error|Connect"


def run(*command, **settings):
    given = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return subprocess.run(command, capture_output=True, text=True, check=False, **{"env": given, **settings})


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built from a copy, because setuptools writes beside what it builds."""
    source = tmp_path_factory.mktemp("source")
    tracked = run("git", "ls-files", "-z", "src", "params", "pyproject.toml", "README.md", "LICENSE", cwd=ROOT)
    for name in filter(None, tracked.stdout.split("\0")):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, source / name, follow_symlinks=False)
    command = [sys.executable, "-m", "uv", "build", "--wheel", "--no-build-isolation", "--python", sys.executable]
    built = run(*command, "--out-dir", "dist", ".", cwd=source)
    assert built.returncode == 0, built.stderr
    return next((source / "dist").glob("*.whl"))


def test_a_wheel_has_settings_and_types_but_no_networks(wheel):
    names = {name.removeprefix("flexround/") for name in zipfile.ZipFile(wheel).namelist()}
    tracked = run("git", "ls-files", "params", cwd=ROOT).stdout.split()
    settings = {name for name in tracked if not name.startswith(("params/networks/", "params/data/"))}
    assert {name for name in names if name.startswith("params/")} == settings
    assert {"py.typed", "results/render/templates/report.html"} <= names


def test_citation_and_changelog_name_the_packages_version():
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == flexround.__version__
    assert re.search(r"^## (\d.*) \(", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[1] == flexround.__version__


def test_the_core_alone_runs_the_first_lines_of_the_page(wheel, tmp_path):
    """Only torchvision is there too, which the lines take their network from; versions are those of the lock."""
    uv, python = [sys.executable, "-m", "uv", "pip"], str(tmp_path / "venv/bin/python")
    assert run(sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")).returncode == 0
    pins = run(*uv, "freeze", "--python", sys.executable).stdout
    (tmp_path / "pins").write_text("\n".join(line for line in pins.splitlines() if "==" in line))
    command = [*uv, "install", "--python", python, "--constraint", str(tmp_path / "pins"), str(wheel), "torchvision"]
    installed = run(*command)
    if re.search(NO_INDEX, installed.stderr):
        pytest.skip("no package index")
    assert installed.returncode == 0, installed.stderr
    lines = re.search(r"```python\n(.*?)```", (ROOT / "docs/library.md").read_text(), re.DOTALL)[1]
    assert "flexround.load(" in lines
    done = run(python, "-c", lines + "print(flexround.__file__)", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert str(tmp_path) in done.stdout
    refused = run(str(tmp_path / "venv/bin/flexround"), "quantize", "--help")
    assert (refused.returncode, refused.stderr) == (
        2,
        "error: flexround needs the package transformers: pip install 'flexround[llm]'\n",
    )


def test_type_checkers_see_lazy_imports():
    tree = ast.parse(Path(flexround.__file__).read_text())
    checked = next(node for node in tree.body if isinstance(node, ast.If))
    assert ast.unparse(checked.test) == "TYPE_CHECKING"
    seen = {name.asname: each.module for each in checked.body for name in each.names if name.asname == name.name}
    assert seen == flexround.PUBLIC
