"""The Snakemake workflow, run for real on a copy of the project at a scale of one small network and one table."""

import contextlib
import csv
import json
import os
import re
import shutil
import sys
import time

import numpy as np
import pytest
from project_copy import copy
from published import Clone

from flexround.settings.layout import ROOT

SCALE = """
name: little
extends: smoke.yaml
checkpoints:
  mobilenetv2-brecq: null
  mobilenetv2-torchvision: null
  resnet8:
    model:
      factory: flexround.models.cifar_resnet:resnet
      args: {depth: 8}
      blocks: flexround.models.cifar_resnet:blocks
hyper:
  - {when: {recipe: b-flexround-w4}, set: {lr: 2.0e-3}, source: "another test"}
  - {when: {recipe: b-rtn-w4}, set: {samples: 64}, source: "a third test"}
shows: {tables: little, published: false}
tables:
  - caption: A test.
    descriptive: [Method, Bits]
    columns: [{name: ResNet-8, task: imagenet, checkpoint: resnet8, metrics: [top1]}]
    groups:
      - {compare: false, rows: [{recipe: full-precision, method: Full-precision, bits: 32/32}]}
      - rows:
          - {recipe: b-rtn-w4, method: RTN, bits: 4/32}
          - {recipe: b-adaround-w4, method: B + AdaRound, bits: 4/32}
          - {recipe: b-flexround-w4, method: B + FlexRound, bits: 4/32}
    tolerance: {top1: 1.0}
"""
OWN = """
recipes:
  b-nudge-w4: {setting: B, rounding: "my_rounding:Nudge", w_bits: 4}
rows:
  - {table: 1, recipe: b-nudge-w4, method: B + Nudge, bits: 4/32}
"""
TABLE = "results/little1.csv"


class Project(Clone):
    """A copy of the project that can be run and edited, with a rounding of the user's own."""

    def __init__(self, root):
        super().__init__(copy(root))
        for name in ("Makefile", "tests/smoke.yaml", "examples/own_rounding/my_rounding.py"):
            shutil.copy2(ROOT / name, root)
        (root / "little.yaml").write_text(SCALE)
        (root / "my rounding.yaml").write_text(OWN)
        self.environment["FLEXROUND_WORKERS"] = "0"  # no worker server, whose start takes longer than a job

    def snakemake(self, *arguments, config=("scale=little.yaml", "own=my rounding.yaml"), **options):
        command = [sys.executable, "-m", "snakemake", "--cores", "2", *arguments, "--config", *config]
        return self.run(*command, **options)

    @contextlib.contextmanager
    def edited(self, *edits):
        """Make edits, each (file, old text, new text), for a while."""
        before = {name: (self.root / name).read_text() for name, _, _ in edits}
        for edit in edits:
            self.edit(*edit)
        try:
            yield
        finally:
            for name, text in before.items():
                (self.root / name).write_text(text)


def planning(project):
    """Return what a job is of -> all settings that it was planned with, and all code."""
    found = {}
    for path in (project.root / ".jobs/little").rglob("*.json"):
        parts, job = path.parent.relative_to(project.root / ".jobs/little").parts, json.loads(path.read_text())
        name = " ".join([parts[0], *parts[3:4]])
        code = job.pop("code")
        found.setdefault(f"{name} code", set()).add(code and code["digest"])
        job.pop("hyper_sources", None)
        found.setdefault(f"{name} settings", set()).add(json.dumps(job))
    return found


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    project = Project(tmp_path_factory.mktemp("Prüfung mit Leerzeichen"))
    server = {name: value for name, value in project.environment.items() if name != "FLEXROUND_WORKERS"}
    project.output = project.snakemake(TABLE, env=server).stdout
    return project


def test_a_table_is_made_from_raw_data(project):
    rows = list(csv.DictReader((project.root / TABLE).open()))
    assert len(rows) == 5
    assert {row["scale"] for row in rows} == {"little"}
    assert all(row["status"] == "computed" and 0 <= float(row["value"]) <= 100 for row in rows)
    assert (project.root / TABLE.replace("/", "/little/")).read_bytes() == (project.root / TABLE).read_bytes()
    assert "\\toprule" in (project.root / TABLE.replace("csv", "tex")).read_text()
    assert "B + FlexRound" in project.output, "the table is printed"


def test_every_job_has_a_log_and_its_own_account(project):
    logs = {path.with_suffix("") for path in (project.root / "logs/little").rglob("*.log")}
    accounts = {
        path.with_name(path.name.removesuffix(".usage.json")): path for path in project.root.rglob("*.usage.json")
    }
    assert set(accounts) == logs
    assert len(logs) == 14
    for path in accounts.values():
        account = json.loads(path.read_text())
        assert account["exit"] == 0
        assert account["seconds"] > 0 < account["cpu_seconds"]
        assert account["max_rss_mb"] > 50
    log = (project.root / "logs/little/quantized/imagenet/resnet8/b-flexround-w4/seed0.log").read_text()
    assert len(re.findall(r"weights \d+/5", log)) == 5, "one line per block"
    name = "calibration/imagenet/n64-seed0"
    command = (project.root / f"logs/little/{name}.log").read_text().splitlines()[0].split(" ", 1)[1]
    samples = project.root / f"results/little/{name}/samples.safetensors"
    before = samples.read_bytes()
    samples.unlink()
    project.run("sh", "-c", command)
    assert samples.read_bytes() == before, "the first line of a log is the command that does the job again"


PUBLISHED = {"tabulate": 1, "publish_table": 1}
ROWS = ("full-precision", "b-rtn-w4", "b-adaround-w4", "b-flexround-w4", "b-nudge-w4")
EVALUATED = [f"evaluated {row} code" for row in ROWS]
EDITS = {  # together: file, what is there, what comes in its place; which files of jobs change; which jobs run again
    "all stages": (
        {
            ("src/flexround/results/render/latex.py", ") -> str:\n", ") -> str | None:\n"): ["little1 code"],
            ("smoke.yaml", 'description: "a test"', 'description: "one test"'): ["little1 settings"],
            ("src/flexround/stages/finetune.py", "log = ", "x = 1\nlog = "): ["checkpoints code"],
            ("smoke.yaml", "min: 0, max: 100}", "min: 0, max: 99}"): ["gates settings"],
            ("src/flexround/stages/evaluate.py", "log = ", "x = 1\nlog = "): EVALUATED,
            ("little.yaml", "samples: 64}, source", "samples: 64, batch: 8}, source"): ["quantized b-rtn-w4 settings"],
            ("params/recipes.yaml", "\n  b-adaround-w4: {", "\n  b-adaround-w4: {hyper: {reg_weight: 0.5}, "): [
                *("quantized b-adaround-w4 settings", "evaluated b-adaround-w4 settings", "little1 settings"),
            ],
        },
        {"finetune": 1, "gate": 1, "reconstruct": 4, "evaluate": 5} | PUBLISHED,
    ),
    "two runs": (
        {
            ("little.yaml", "lr: 2.0e-3", "lr: 3.0e-3"): ["quantized b-flexround-w4 settings"],
            ("my_rounding.py", "self.v.tanh()", "self.v.sin()"): ["quantized b-nudge-w4 code"],
        },
        {"reconstruct": 2, "evaluate": 2} | PUBLISHED,
    ),
}


@pytest.mark.parametrize("together", EDITS)
def test_edits_rerun_exactly_what_depends_on_them(project, together):
    edits, expected = EDITS[together]
    before = planning(project)
    with project.edited(*edits):
        assert project.planned(TABLE) == expected, "what is made before stays"
    now = planning(project)
    assert {name for name in now if now[name] != before[name]} == {name for of in edits.values() for name in of}


# Nothing depends on tools, comments and docstrings, planning, what a job asks for, reasons of values.
NOTHING = (
    ("src/flexround/tools/plan.py", "GIB = 2**30", "GIB = 1"),
    ("src/flexround/reconstruct/engine.py", '"""', '"""Another docstring. '),
    ("src/flexround/reconstruct/optimise.py", "\n\n\n", "\n# a comment\n\n\n"),
    ("src/flexround/settings/load.py", "\n\n\ndef load_params(", "\n\n\nx = 1\n\n\ndef load_params("),
    ("smoke.yaml", "runtime: 5", "runtime: 6"),
    ("little.yaml", '"a third test"', '"a fourth test"'),
)


def test_a_second_run_does_nothing_and_says_what_was_upgraded(project):
    """Also after edits that were taken back."""
    metrics = project.root / "results/little/evaluated/imagenet/resnet8/full-precision/seed0/metrics.json"
    before, text = metrics.stat(), metrics.read_text()
    metrics.write_text(text.replace(f'"numpy": "{np.__version__}"', '"numpy": "1.0"'))
    os.utime(metrics, ns=(before.st_atime_ns, before.st_mtime_ns))
    with project.edited(*NOTHING):
        done = project.snakemake("-n", TABLE)
    metrics.write_text(text)
    os.utime(metrics, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert project.jobs(done.stdout) == {}
    told = f"numpy {np.__version__} is installed; results in results/little that were made with 1.0: 1; they stay"
    assert (done.stdout + done.stderr).count(told) == 1


def test_a_file_that_is_no_python_ends_the_run_with_its_line(project):
    """Snakemake alone would take the error of an input function for "up to date"."""
    with project.edited(("src/flexround/quant/adaround.py", "import GAMMA", "import 1 * GAMMA")):
        done = project.snakemake("-n", TABLE, check=False)
    assert done.returncode != 0
    assert re.search(r"adaround\.py\"?, line \d+\n", done.stderr)


def test_a_table_of_the_papers_scale_needs_these_jobs(project):
    config = ["scale=paper", "checkpoints=resnet18-brecq", "seeds=2"]
    planned = project.planned("results/table3.csv", config=config)
    made = {"fetch": 1, "data": 1, "finetune": 1, "gate": 1, "calibrate": 2, "reconstruct": 16, "evaluate": 17}
    assert planned == made | PUBLISHED


MODULE = """
configfile: "config/config.yaml"

module flexround:
    snakefile: "{root}/workflow/Snakefile"
    config: config["flexround"]

use rule * from flexround as flexround_*

rule mine:
    default_target: True
    input: "results/mine/data/glue-rte"
    output: "files.txt"
    shell: "ls {{input}} > {{output}}"
"""


def test_another_workflow_has_this_one_as_a_module(project, tmp_path):
    """Its files are found in the project, results lie in the other workflow's directory, whose settings are its own."""
    (tmp_path / "config").mkdir()
    (tmp_path / "config/config.yaml").write_text("mine: 1\nflexround: {scale: mine.yaml}\n")
    (tmp_path / "mine.yaml").write_text("name: mine\nextends: mini\n")
    (tmp_path / "Snakefile").write_text(MODULE.format(root=project.root))
    snakemake = sys.executable, "-m", "snakemake", "--cores", "1"
    planned = project.run(*snakemake, "-n", "results/table3.csv", cwd=tmp_path)
    assert re.search(r"flexround_reconstruct +\d+\n", planned.stdout), planned.stdout + planned.stderr
    project.run(*snakemake, cwd=tmp_path)
    assert "manifest.json" in (tmp_path / "files.txt").read_text()


def test_the_configuration_comes_after_the_command_line(project):
    config = project.root / "config/config.yaml"
    config.parent.mkdir()
    command = sys.executable, "-m", "snakemake", "--cores", "1", "-n", TABLE
    try:
        config.write_text("scale: little.yaml\nown: my rounding.yaml\nseeds: 2\n")
        assert "Nothing to be done" in project.run(*command, "--config", "seeds=1").stdout
        config.write_text("scale: little.yaml\nsedes: 1\n")
        done = project.run(*command, check=False)
    finally:
        shutil.rmtree(config.parent)
    assert done.returncode
    assert "did you mean 'seeds'" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_a_users_rounding_has_a_row_and_changes_nothing_else(project):
    rows = [row for row in csv.DictReader((project.root / TABLE).open()) if row["recipe"] == "b-nudge-w4"]
    assert {(row["method"], row["published"], row["status"]) for row in rows} == {("B + Nudge", "", "computed")}
    for suffix in ("tex", "html"):
        assert "B + Nudge" in (project.root / TABLE.replace("csv", suffix)).read_text()
    assert project.planned(TABLE, config=["scale=little.yaml"]) == PUBLISHED, "the row goes with the file"


def test_a_setting_counts_whatever_the_times_of_results(project):
    yesterday = time.time() - 86400
    for path in (path for name in ("results", ".jobs") for path in (project.root / name).rglob("*")):
        os.utime(path, (yesterday, yesterday))
    assert project.planned(TABLE) == {}
    with project.edited(("little.yaml", "lr: 2.0e-3", "lr: 3.0e-3")):
        run = "results/little/quantized/imagenet/resnet8/b-flexround-w4/seed0"
        verified = project.stage("verify", "--scale", "little.yaml").stdout
        assert re.findall(r"(.*): made with other", verified) == [run]
        project.snakemake(run)
        assert project.planned(TABLE) == {"evaluate": 1} | PUBLISHED
        project.snakemake("--touch", TABLE)
        assert project.planned(TABLE) == {}
