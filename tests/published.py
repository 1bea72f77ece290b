"""A small scale in a project of its own: of made-up results published to a directory beside it, and clones of it.

For the tests of storage.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import table_runs
import yaml
from dvc.repo import Repo
from project_copy import copy

from flexround.io.artifacts import read_json, write_json, write_manifest
from flexround.results import cells, frames, grid, paper_numbers, table_csv
from flexround.results.cells import Scope
from flexround.results.render import html, latex
from flexround.settings import layout
from flexround.settings.layout import ROOT, Run
from flexround.settings.load import load_params
from flexround.settings.plan import Plan
from flexround.tools.verify import served

COPIED = ("Makefile", ".dvcignore", ".dvc/config", ".dvc/.gitignore", ".dvc/plots")  # beside what a run needs
MAKE = ("make", "-o", ".venv/installed", "SCALE=smoke.yaml")
CLAIMS = ("claims.csv", "errata.csv", "ranking.csv")
SOURCE = "mini-ptb"  # a file of the project, of which the data could be made
TABLE = ("table10.csv", "table10.tex", "table10.html")


class Clone:
    """A project in which results of the smoke scale are made, published or pulled."""

    def __init__(self, root):
        self.root = root
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        own = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}  # of make test
        self.environment = own | {"PYTHONPATH": str(root / "src"), "PATH": path}
        self.environment["DVC_SITE_CACHE_DIR"] = str(root / ".dvc/tmp/site")  # as in the Makefile

    def run(self, *command, check=True, **settings):
        settings = {"cwd": self.root, "env": self.environment} | settings
        done = subprocess.run(command, capture_output=True, text=True, check=False, **settings)
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return done

    def start(self, *command):
        """Start a command in a session of its own."""
        pipe = subprocess.PIPE
        return subprocess.Popen(
            command, cwd=self.root, env=self.environment, stdout=pipe, stderr=subprocess.STDOUT, text=True,
            start_new_session=True,
        )  # fmt: skip

    def make(self, target, *arguments, check=True):
        return self.run(*MAKE, target, *arguments, check=check)

    def stage(self, name, *arguments, check=True):
        return self.run(sys.executable, "-m", f"flexround.tools.{name}", *arguments, check=check)

    def snakemake(self, *arguments):
        return self.run(sys.executable, "-m", "snakemake", "--cores", "2", *arguments, "--config", "scale=smoke.yaml")

    def planned(self, *targets, **options):
        """Return rule -> number of jobs of a dry run, for everything unless targets are named."""
        return self.jobs(self.snakemake("-n", *targets, **options).stdout)

    @staticmethod
    def jobs(text):
        """Return rule -> number of jobs that Snakemake says of a dry run."""
        if "Nothing to be done" in text:
            return {}
        found = re.findall(r"^(\w+) +(\d+)$", text.split("Job stats:")[1].split("\n\n")[0], re.MULTILINE)
        return {name: int(count) for name, count in found if name not in ("total", "all")}

    def edit(self, name, old, new):
        path = self.root / name
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new, 1))


def write_result(root, directory, number):
    """Write what a stage would have left in a directory, with made-up content."""
    kind, *rest = Path(directory).parts[2:]
    data = layout.data_dir("smoke", rest[0])
    origins = [] if kind == "data" else [data]
    if kind == "quantized":
        origins = [layout.checkpoint_dir("smoke", *rest[:2]), layout.calibration_dir("smoke", rest[0], 64, 0)]
    if kind == "evaluated":
        network = layout.quantized_dir(Run("smoke", *rest[:3], 0))
        network = network if (root / network).exists() else layout.checkpoint_dir("smoke", *rest[:2])
        origins = [data, network]
    inputs = {origin: read_json(root / origin / "manifest.json")["files"] for origin in origins}
    if kind == "data":
        inputs = {layout.source_file(SOURCE): read_json(root / layout.source_file(SOURCE))["sha256"]}
    facts = {"place": directory, "inputs": inputs}
    if kind == "gates":
        write_json(root / directory, {"format": 1, **facts})
        return
    if kind == "evaluated":
        run = Run("smoke", *rest[:3], int(rest[3].removeprefix("seed")))
        table_runs.write_run(root / "results", run, table_runs.hits(500 + number), table_runs.METRICS, **facts)
        return
    (root / directory).mkdir(parents=True)
    (root / directory / "model.safetensors").write_bytes(np.random.default_rng(number).bytes(20_000))
    write_manifest(root / directory, ["model.safetensors"], **facts)


def stages():
    """Return the stages of dvc.yaml as DVC reads them: name -> command, and the paths of its outputs."""
    with Repo(str(ROOT)) as repo:
        found = repo.index.stages
    return {each.name: (each.cmd, [os.path.relpath(out.fs_path, ROOT) for out in each.outs]) for each in found}


def write_storage(root):
    """Write the dvc.yaml of the mini scale as it would be for what the smoke scale has."""
    written = {}
    for name, (command, outs) in stages().items():
        paths = [re.sub("^(results|logs)/mini", r"\1/smoke", out) for out in outs]
        kept = [{p: {"persist": True}} for p in paths if (root / p).exists() or p.endswith("/records")]
        if kept:
            written[name.replace("@", "-")] = {"cmd": command, "outs": kept}
    (root / "dvc.yaml").write_text(yaml.safe_dump({"stages": written}))


def copy_names(root, *names):
    """Copy files and folders of the project into a directory."""
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if (ROOT / name).is_dir() else shutil.copy2)(ROOT / name, root / name)


def copied(root):
    """Copy what runs and is published into a directory, with the smoke scale."""
    copy(root)
    copy_names(root, *COPIED)
    smoke = (ROOT / "tests/smoke.yaml").read_text()
    options = "    options: {train: 640"
    (root / "smoke.yaml").write_text(smoke.replace(options, f"    sources: [{SOURCE}]\n{options}"))
    (root / ".gitignore").write_text((ROOT / ".gitignore").read_text() + ".venv\n")
    return Clone(root)


def publish(root):
    """Publish a made-up smoke scale of a project to a directory beside it."""
    project = copied(root)
    plan = Plan(load_params(str(root / "smoke.yaml")))
    project.run("ln", "-s", sys.prefix, ".venv")
    project.snakemake("--until", "fetch")
    order = ("data", "checkpoints", "calibration", "gates", "quantized", "evaluated")
    for number, directory in enumerate(sorted(served(plan), key=lambda path: order.index(Path(path).parts[2]))):
        write_result(root, directory, number)
    table, recipes = plan.params.tables[10], plan.params.recipes.recipes
    found = cells.collect(table, Scope("smoke", recipes, 1, root / "results"))
    frame = table_csv.of_cells(found, paper_numbers.load(), table, plan.scale)
    text, shown = frames.text(frame), grid.of(frame)
    made = dict.fromkeys(("figure4.pdf", "figure4.png", "figure7.pdf", "figure7.png"), "figure\n")
    made |= dict(zip(TABLE, (text, *(r(shown, table, plan.scale) for r in (latex.render, html.render))), strict=True))
    for name, content in (made | dict.fromkeys(CLAIMS, "claim\n")).items():
        for directory in ("results", "results/smoke"):
            (root / directory / name).write_text(content)
    (root / "results/smoke/metrics.json").write_text('{"cells": {"computed": 24}}')
    project.snakemake("--touch", "--forceall", "--quiet", "all")
    write_storage(root)
    project.run("git", "init", "--quiet")
    project.output = project.make("push", f"REMOTE={root.parent / 'remote'}").stdout
    project.run("git", "add", ".")
    project.run("git", "-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "--message", "published")
    return project


def cloned(project, parent):
    project.run("git", "clone", "--quiet", ".", str(parent / "clone"))
    clone = Clone(parent / "clone")
    clone.run("ln", "-s", sys.prefix, ".venv")
    return clone


def remote(project):
    return project.root.parent / "remote"
