"""Results published to a directory and pulled elsewhere, damaged and interrupted on the way; what dvc.yaml covers."""

import contextlib
import csv
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import table_runs
import yaml

from flexround.artifacts import write_json, write_manifest
from flexround.settings.dependents import served
from flexround.settings.layout import ROOT, Run
from flexround.settings.load import load_params
from flexround.settings.plan import Plan
from flexround.tools.verify import KINDS

COPIED = (
    "src",
    "params",
    "workflow",
    "profiles",
    "Snakefile",
    "Makefile",
    ".dvcignore",
    *(".dvc/config", ".dvc/.gitignore", ".dvc/plots"),
)
RUN = "results/smoke/quantized/imagenet/mobilenetv2-brecq/b-flexround-w4/seed0"
HEAVY = f"{RUN}/model.safetensors"
RECIPE = "\n  b-adaround-w4: {", "\n  b-adaround-w4: {hyper: {reg_weight: 0.5}, "
CELL = ("b-flexround-w4", "top1", "mobilenetv2-brecq")
CLAIMS = ("claims.csv", "claims.html", "errata.csv")
TABLE = ("table10.csv", "table10.tex", "table10.html")
KILLED_COLLECTING = """
import os, sys
from dvc.cli import main
from dvc_data.index import collect
first = collect._collect_from_index
def die(cache, *rest, **options):
    first(cache, *rest, **options)
    cache.commit()
    os.kill(os.getpid(), 9)
collect._collect_from_index = die
main(sys.argv[1:])
"""
KILLED_COPYING = """
import os, sys
from dvc.cli import main
replace, left = os.replace, [40]
def die(source, target):
    left[0] -= "files/md5" in str(target)
    left[0] or os.kill(os.getpid(), 9)
    replace(source, target)
os.replace = die
main(sys.argv[1:])
"""
STORAGE = yaml.safe_load((ROOT / "dvc.yaml").read_text())
EDIT = ") -> str:\n", ") -> str | None:\n"


class Clone:
    """A project in which results of the smoke scale are made, published or pulled."""

    def __init__(self, root):
        self.root = root
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self.environment = os.environ | {"PYTHONPATH": str(root / "src"), "PATH": path}
        self.environment["DVC_SITE_CACHE_DIR"] = str(root / ".dvc/tmp/site")  # as in the Makefile

    def run(self, *command, check=True):
        done = subprocess.run(command, cwd=self.root, env=self.environment, capture_output=True, text=True, check=False)
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return done

    def make(self, target, *arguments, check=True):
        return self.run("make", "-o", ".venv/installed", target, "SCALE=smoke.yaml", *arguments, check=check)

    def stage(self, name, *arguments, check=True):
        return self.run(sys.executable, "-m", f"flexround.tools.{name}", *arguments, check=check)

    def snakemake(self, *arguments):
        return self.run(sys.executable, "-m", "snakemake", "--cores", "2", *arguments, "--config", "scale=smoke.yaml")

    def planned(self):
        """Return rule -> number of jobs of a dry run for everything."""
        return self.jobs(self.snakemake("-n").stdout)

    @staticmethod
    def jobs(text):
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
    if kind == "gates":
        write_json(root / directory, {"format": 1})
        return
    if kind == "evaluated":
        run = Run("smoke", *rest[:3], int(rest[3].removeprefix("seed")))
        table_runs.write_run(root / "results", run, table_runs.hits(500 + number), table_runs.METRICS)
        return
    (root / directory).mkdir(parents=True)
    (root / directory / "model.safetensors").write_bytes(np.random.default_rng(number).bytes(20_000))
    write_manifest(root / directory, ["model.safetensors"])


def write_storage(root):
    """Write the dvc.yaml of the mini scale as it would be for what the smoke scale has."""
    storage = yaml.safe_load(re.sub("(results|logs)/mini", r"\1/smoke", (ROOT / "dvc.yaml").read_text()))
    for entry in storage["stages"].values():
        paths = [next(iter(out)) for out in entry["outs"]]
        entry["outs"] = [{p: {"persist": True}} for p in paths if (root / p).exists() or p.endswith("/records")]
    storage["stages"] = {name: entry for name, entry in storage["stages"].items() if entry["outs"]}
    del storage["metrics"], storage["plots"]  # of results/reference, which is in git
    (root / "dvc.yaml").write_text(yaml.safe_dump(storage))


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """Publish a made-up smoke scale to a directory beside the project."""
    root = tmp_path_factory.mktemp("published") / "project"
    root.mkdir()
    for name in COPIED:
        (root / name).parent.mkdir(exist_ok=True)
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy2
        copy(ROOT / name, root / name)
    shutil.copy2(ROOT / "tests/smoke.yaml", root)
    (root / ".gitignore").write_text((ROOT / ".gitignore").read_text() + ".venv\n")
    for number, directory in enumerate(served(Plan(load_params(str(root / "smoke.yaml"))))):
        write_result(root, directory, number)
    for name in ("figure4.pdf", "figure4.png", "figure7.pdf", "figure7.png", *TABLE, *CLAIMS):
        for directory in ("results", "results/smoke"):
            (root / directory / name).write_text("recipe,metric,value,n_examples\nx,top1,1.00,9\n")
    (root / "results/smoke/metrics.json").write_text('{"cells": {"computed": 24}}')
    for name in ("claims.csv", "claims.html", "errata.csv"):
        for directory in ("results", "results/smoke"):
            (root / directory / name).write_text("claim\n")
    project = Clone(root)
    project.run("ln", "-s", sys.prefix, ".venv")
    project.snakemake("--touch", "--forceall", "--quiet", "all")
    write_storage(root)
    project.run("git", "init", "--quiet")
    project.output = project.make("push", f"REMOTE={root.parent / 'remote'}").stdout
    project.run("git", "add", ".")
    project.run("git", "-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "--message", "published")
    return project


@pytest.fixture
def clone(published, tmp_path):
    """Clone the published project; its results are still in the remote."""
    return cloned(published, tmp_path)


@pytest.fixture(scope="module")
def pulled(published, tmp_path_factory):
    """Clone the published project, edit a recipe, then pull: results of other settings than the clone's."""
    clone = cloned(published, tmp_path_factory.mktemp("pulled"))
    clone.edit("params/recipes.yaml", *RECIPE)
    clone.output = clone.make("pull", f"REMOTE={remote(published)}").stdout
    return clone


def cloned(project, parent):
    project.run("git", "clone", "--quiet", ".", str(parent / "clone"))
    clone = Clone(parent / "clone")
    clone.run("ln", "-s", sys.prefix, ".venv")
    return clone


def remote(project):
    return project.root.parent / "remote"


def names(directory):
    return {path.name for path in directory.rglob("*") if path.is_file()}


def stored(project, path):
    """Return where the remote keeps a file, by its md5."""
    md5 = hashlib.md5((project.root / path).read_bytes()).hexdigest()
    return remote(project) / "files/md5" / md5[:2] / md5[2:]


@contextlib.contextmanager
def damaged(path):
    """Change the last byte of a file for a while."""
    content = path.read_bytes()
    path.chmod(0o644)
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    yield
    path.write_bytes(content)


def test_pulled_results_are_current_and_what_has_changed_since_is_not(pulled):
    assert re.search(r"results/smoke: \d\d files checked", pulled.output)
    planned = pulled.planned()
    assert (planned["reconstruct"], planned["evaluate"], planned["tabulate"]) == (2, 2, 1)
    pulled.edit("params/recipes.yaml", *reversed(RECIPE))
    assert pulled.planned() == {}
    pulled.edit("src/flexround/results/render/latex.py", *EDIT)
    assert pulled.planned() == {"tabulate": 1, "publish_table": 1, "summary": 1}
    pulled.edit("src/flexround/results/render/latex.py", *reversed(EDIT))


def test_tables_are_made_of_pulled_results_without_computing_them(pulled):
    for name in TABLE:
        (pulled.root / "results/smoke" / name).unlink()
    done = pulled.snakemake("results/smoke/table10.csv")
    assert "1 jobs: 1 tabulate;" in done.stderr
    cells = list(csv.DictReader((pulled.root / "results/smoke/table10.csv").open()))
    metrics = pulled.root / RUN.replace("quantized", "evaluated") / "metrics.json"
    expected = json.loads(metrics.read_text())["metrics"]["top1"]
    assert {c["status"] for c in cells} == {"computed"}
    assert [float(c["value"]) for c in cells if (c["recipe"], c["metric"], c["checkpoint"]) == CELL] == [expected]


def test_a_wrong_byte_in_the_remote_is_named_before_anything_is_checked_out(published, clone):
    with damaged(stored(published, HEAVY)):
        done = clone.make("pull", f"REMOTE={remote(published)}", check=False)
    assert done.returncode != 0
    assert f"{HEAVY}: damaged" in done.stdout
    assert not (clone.root / "results").exists()
    clone.make("pull")
    assert (clone.root / HEAVY).read_bytes() == (published.root / HEAVY).read_bytes()


def test_a_wrong_byte_in_the_cache_is_named(published, pulled):
    copy = pulled.root / ".dvc/cache" / stored(published, HEAVY).relative_to(remote(published))
    with damaged(copy):
        done = pulled.stage("stored", check=False)
    assert done.returncode == 1
    assert [line for line in done.stdout.splitlines() if ": damaged" in line] == [
        f"{HEAVY}: damaged, its copy {copy.relative_to(pulled.root / '.dvc/cache')} has another md5"
    ]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (r"md5: [0-9a-f]{32}\n", "md5: ../../../victim\n"),
        (r"md5: [0-9a-f]{32}\n", "md5: /etc/hostname\n"),
        (r"md5: [0-9a-f]{32}\n", "md5: [1, 2]\n"),
        (r"(?s)stages:.*", "stages: []\n"),
        (r"(?s).*", ""),
    ],
)
def test_a_lock_that_is_not_dvcs_is_refused_and_nothing_is_deleted(pulled, tmp_path, before, after):
    shutil.copytree(pulled.root, tmp_path / "copy", symlinks=True)
    copy = Clone(tmp_path / "copy")
    victim = copy.root / "victim"
    victim.write_text("somebody's file")
    lock = copy.root / "dvc.lock"
    lock.write_text(re.sub(before, lambda _: after, lock.read_text(), count=1))
    done = copy.stage("stored", check=False)
    assert done.returncode == 2
    assert "error: dvc.lock" in done.stderr
    assert "Traceback" not in done.stderr
    assert victim.read_text() == "somebody's file"


def test_what_is_wrong_is_named_with_what_it_touches(pulled, tmp_path):
    shutil.copytree(pulled.root, tmp_path / "copy", symlinks=True)
    copy = Clone(tmp_path / "copy")
    results = copy.root / "results/smoke"
    with damaged(copy.root / HEAVY):
        (results / "quantized/imagenet/extra.bin").write_text("")
        (results / "data/imagenet/model.safetensors").unlink()
        (results / "calibration/imagenet/n64-seed0/manifest.json").write_text("{}")
        metrics = results / RUN.removeprefix("results/smoke/").replace("quantized", "evaluated") / "metrics.json"
        content = json.loads(metrics.read_text())
        content["metrics"]["top1"] += 1
        metrics.unlink()  # another clone's is linked
        metrics.write_text(json.dumps(content))
        done = copy.stage("verify", "--scale", "smoke.yaml", check=False)
    assert done.returncode == 1
    *lines, _, total = done.stdout.splitlines()
    everything = "touches table10, figure4, figure7"
    samples = "results/smoke/calibration/imagenet/n64-seed0"
    assert lines == [
        f"{samples}/manifest.json: damaged: it lists no files; {everything}",
        f"results/smoke/data/imagenet/model.safetensors: missing, but its manifest lists it; {everything}",
        f"{HEAVY}: its sha256 is not the one in its manifest; touches table10, figure4",
        f"{metrics.relative_to(copy.root)}: metrics.top1 = {content['metrics']['top1']}, but predictions.safetensors "
        f"gives {content['metrics']['top1'] - 1}; touches table10",
        f"{samples}/model.safetensors: no manifest lists it; {everything}",
        "results/smoke/quantized/imagenet/extra.bin: no manifest lists it; touches nothing",
    ]
    assert total.startswith("6 wrong, missing or unlisted")


def test_what_is_not_whole_or_current_is_not_published(published):
    lock = (published.root / "dvc.lock").read_text()
    with damaged(published.root / HEAVY):
        done = published.make("push", check=False)
    assert done.returncode != 0
    assert HEAVY in done.stdout
    published.edit("src/flexround/results/render/latex.py", *EDIT)
    done = published.make("push", check=False)
    published.edit("src/flexround/results/render/latex.py", *reversed(EDIT))
    assert done.returncode != 0
    assert "not published" in done.stderr
    assert (published.root / "dvc.lock").read_text() == lock


def test_an_interrupted_push_and_pull_are_continued(published, tmp_path):
    shutil.copytree(published.root, tmp_path / "project", symlinks=True)
    project = Clone(tmp_path / "project")
    project.run("dvc", "remote", "add", "--local", "--force", "--default", "storage", str(remote(project)))
    whole = names(project.root / ".dvc/cache/files")
    assert project.run(sys.executable, "-c", KILLED_COPYING, "push", check=False).returncode == -signal.SIGKILL
    assert 0 < len(names(remote(project))) < len(whole)
    project.make("push")
    assert whole <= names(remote(project))
    clone = cloned(project, tmp_path)
    clone.run("dvc", "remote", "add", "--local", "--default", "storage", str(remote(project)))
    assert clone.run(sys.executable, "-c", KILLED_COPYING, "fetch", check=False).returncode == -signal.SIGKILL
    assert 0 < len(names(clone.root / ".dvc/cache/files")) < len(whole)
    clone.make("pull")
    assert whole <= names(clone.root / ".dvc/cache/files")


def test_a_fetch_killed_while_it_collects_hides_nothing_from_the_next_pull(published, clone):
    clone.run("dvc", "remote", "add", "--local", "--default", "storage", str(remote(published)))
    assert clone.run(sys.executable, "-c", KILLED_COLLECTING, "fetch", check=False).returncode == -signal.SIGKILL
    clone.make("pull")
    assert (clone.root / HEAVY).exists()
    assert (clone.root / "results/smoke/metrics.json").exists()


def test_every_output_of_the_mini_scale_is_stored_once(published):
    summary = published.run("snakemake", "--summary", "--config", "scale=mini").stdout.splitlines()[1:]
    outputs = {line.split("\t")[0] for line in summary if line.startswith("results/mini/")}
    assert len(outputs) > 900
    paths = [next(iter(out)) for entry in STORAGE["stages"].values() for out in entry["outs"]]
    holders = {output: [p for p in paths if output == p or output.startswith(f"{p}/")] for output in outputs}
    assert {output: found for output, found in holders.items() if len(found) != 1} == {}
    others = set(paths) - {path for found in holders.values() for path in found}
    assert others == {"logs/mini", "results/mini/records"}
    files = ("metrics.json", "predictions.safetensors")
    kinds = [output for output in outputs if Path(output).parts[2] in (*KINDS, "gates")]
    made = {str(Path(output).parent) if output.endswith(files) else output for output in kinds}
    assert made == set(served(Plan(load_params("mini"))))


def test_every_table_and_figure_is_made_by_one_entry():
    commands = str([entry["cmd"] for entry in STORAGE["stages"].values()])
    made = re.findall(r"results/(table\d+)\.csv|results/(figure\d+)\.pdf", commands)
    plan = Plan(load_params("mini"))
    expected = [f"table{n}" for n in plan.complete_tables()] + [f"figure{n}" for n in plan.complete_figures()]
    assert sorted(table or figure for table, figure in made) == sorted(expected)
    outs = [out for entry in STORAGE["stages"].values() for out in entry["outs"]]
    assert all(list(out.values()) == [{"persist": True}] for out in outs), "DVC would delete it before a run"
