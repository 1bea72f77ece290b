"""The Snakemake workflow, run for real on a copy of the project at a smoke scale."""

import contextlib
import csv
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

from flexround.settings.plan import CONFIG_KEYS

ROOT = Path(__file__).resolve().parent.parent
COPIED = ("src", "params", "workflow", "profiles", "Snakefile", "Makefile")


class Project:
    """A copy of the project that can be run and edited."""

    def __init__(self, root):
        self.root = root
        for name in COPIED:
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy2
            copy(ROOT / name, root / name)
        shutil.copy2(ROOT / "tests/smoke.yaml", root / "smoke.yaml")

    @property
    def environment(self):
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        return os.environ | {"PYTHONPATH": str(self.root / "src"), "PATH": path}

    def run(self, *command, check=True):
        done = subprocess.run(command, cwd=self.root, env=self.environment, capture_output=True, text=True, check=False)
        if check:
            assert done.returncode == 0, done.stdout + done.stderr
        return done

    def snakemake(self, *arguments, scale="smoke.yaml", config=(), check=True):
        command = [sys.executable, "-m", "snakemake", "--cores", "2", *arguments, "--config", f"scale={scale}", *config]
        return self.run(*command, check=check)

    def planned(self, *arguments, **options):
        """Return rule -> number of jobs of a dry run."""
        done = self.snakemake("-n", *arguments, **options)
        text = done.stdout + done.stderr
        if "Nothing to be done" in text:
            return {}
        assert "Job stats:" in text, text
        stats = text.split("Job stats:")[1].split("\n\n")[0]
        return {
            name: int(count) for name, count in re.findall(r"^(\w+) +(\d+)$", stats, re.MULTILINE) if name != "total"
        }


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    project = Project(tmp_path_factory.mktemp("Prüfung mit Leerzeichen"))
    project.output = project.snakemake("results/table10.csv").stdout
    return project


def test_a_table_is_made_from_raw_data(project):
    rows = list(csv.DictReader((project.root / "results/table10.csv").open()))
    assert len(rows) == 24
    assert {row["scale"] for row in rows} == {"smoke"}
    assert all(row["status"] == "computed" and 0 <= float(row["value"]) <= 100 for row in rows)
    assert (project.root / "results/smoke/table10.csv").read_bytes() == (
        project.root / "results/table10.csv"
    ).read_bytes()
    assert "\\toprule" in (project.root / "results/table10.tex").read_text()
    assert "72.62" in project.output, "the table is printed beside the paper's values"
    assert project.planned("results/table10.csv") == {}, "a second run does nothing"


def test_every_job_has_a_log_and_its_own_account(project):
    logs = {path.with_suffix("") for path in (project.root / "logs/smoke").rglob("*.log")}
    accounts = {
        path.with_name(path.name.removesuffix(".usage.json")): path for path in project.root.rglob("*.usage.json")
    }
    assert set(accounts) == logs
    assert len(logs) >= 18
    for path in accounts.values():
        account = json.loads(path.read_text())
        assert account["exit"] == 0
        assert account["seconds"] > 0 < account["cpu_seconds"]
        assert account["max_rss_mb"] > 50
    log = (project.root / "logs/smoke/quantized/imagenet/mobilenetv2-brecq/b-flexround-w4/seed0.log").read_text()
    assert len(re.findall(r"weights \d+/20", log)) == 20, "one line per block"


def test_the_command_in_a_log_does_the_job_again_by_hand(project):
    name = "calibration/imagenet/n64-seed0"
    command = (project.root / f"logs/smoke/{name}.log").read_text().splitlines()[0].split(" ", 1)[1]
    samples = project.root / f"results/smoke/{name}/samples.safetensors"
    before = samples.read_bytes()
    samples.unlink()
    project.run("sh", "-c", command)
    assert samples.read_bytes() == before


@pytest.fixture
def own(tmp_path):
    """The example's rounding in a directory of the user's, with a row in table 10."""
    shutil.copy2(ROOT / "examples/own_rounding/my_rounding.py", tmp_path)
    file = tmp_path / "my rounding.yaml"
    file.write_text(
        'recipes:\n  b-nudge-w4: {setting: B, rounding: "my_rounding:Nudge", w_bits: 4}\n'
        "rows:\n  - {table: 10, recipe: b-nudge-w4, method: B + Nudge}\n"
    )
    return file


def test_a_rounding_of_the_users_own_gets_a_row_and_nothing_else_is_computed(project, own):
    config = [f"own={own}"]
    expected = {"reconstruct": 2, "evaluate": 2, "tabulate": 1, "publish_table": 1}
    assert project.planned("results/table10.csv", config=config) == expected
    project.snakemake("results/table10.csv", config=config)
    rows = [r for r in csv.DictReader((project.root / "results/table10.csv").open()) if r["recipe"] == "b-nudge-w4"]
    assert {(row["method"], row["published"], row["status"]) for row in rows} == {("B + Nudge", "", "computed")}
    for suffix in ("tex", "html"):
        assert "B + Nudge" in (project.root / f"results/table10.{suffix}").read_text()
    assert project.planned("results/table10.csv", config=config) == {}

    moved = shutil.copytree(own.parent, own.parent / "moved") / own.name
    module = moved.with_name("my_rounding.py")
    module.write_text("# edited\n" + module.read_text())
    same = project.planned("results/table10.csv", config=[f"own={moved}"])
    assert same == {}, "neither where the file lies nor a comment in it is of interest"
    module = own.with_name("my_rounding.py")
    module.write_text(module.read_text().replace("self.v.tanh()", "self.v.sin()"))
    assert project.planned("results/table10.csv", config=config) == expected

    project.snakemake("results/table10.csv")
    assert "nudge" not in (project.root / "results/table10.csv").read_text()


@contextlib.contextmanager
def edited(project, name, old, new):
    path = project.root / name
    before = path.read_text()
    assert old in before
    path.write_text(before.replace(old, new, 1))
    yield
    path.write_text(before)


MADE = ["data", "finetune", "gate", "calibrate", "reconstruct", "evaluate", "tabulate"]
ALL, PUBLISHED = {"reconstruct": 8, "evaluate": 8}, {"tabulate": 1, "publish_table": 1}


NOTHING = (  # of this depends on it: tools, another rounding, comments and docstrings, planning, what a job asks for
    ("src/flexround/tools/plan.py", "GIB = 2**30", "GIB = 1"),
    ("src/flexround/quant/gptq.py", "class GPTQ(", "x = 1\n\nclass GPTQ("),
    ("src/flexround/reconstruct/engine.py", '"""', '"""Another docstring. '),
    ("src/flexround/reconstruct/optimise.py", "\n\n\n", "\n# a comment\n\n\n"),
    ("src/flexround/settings/load.py", "\n\n\ndef load_params(", "\n\n\nx = 1\n\n\ndef load_params("),
    ("smoke.yaml", "runtime: 5", "runtime: 6"),
)
FULL_PRECISION = {"data": 1, "calibrate": 1, "finetune": 2, "gate": 2}


@pytest.mark.parametrize(
    ("edits", "expected"),
    [
        (NOTHING, {}),
        ([("src/flexround/results/render/latex.py", ") -> str:\n", ") -> str | None:\n")], PUBLISHED),
        (
            [("src/flexround/quant/adaround.py", "(ZETA - GAMMA)", "(ZETA - 1 * GAMMA)")],
            {"reconstruct": 4, "evaluate": 4},
        ),
        ([("src/flexround/mini/digits.py", "def make(train: int", "def make(train: float")], FULL_PRECISION),
        ([("smoke.yaml", "{metric: top1, min: 0, max: 100}", "{metric: top1, min: 0, max: 99}")], {"gate": 2}),
        ([("smoke.yaml", "iters: 2, lr: 1.0e-3, a_iters", "iters: 3, lr: 1.0e-3, a_iters")], ALL),
        ([("smoke.yaml", 'source: "a test"\nresources', 'source: "another test"\nresources')], ALL),
        ([("smoke.yaml", 'description: "a test"', 'description: "one test"')], PUBLISHED),
        (
            [("params/recipes.yaml", "\n  b-adaround-w4: {", "\n  b-adaround-w4: {hyper: {reg_weight: 0.5}, ")],
            {"reconstruct": 2, "evaluate": 2},
        ),
    ],
)
def test_an_edit_reruns_exactly_what_depends_on_it(project, edits, expected):
    with contextlib.ExitStack() as stack:
        for edit in edits:
            stack.enter_context(edited(project, *edit))
        planned = project.planned("results/table10.csv")
    assert {rule: planned.get(rule) for rule in expected} == expected
    first, found = (next((rule for rule in MADE if rule in rules), None) for rules in (expected, planned))
    assert first == found, "what is made before it stays"
    assert bool(planned) == bool(expected)


def test_restoring_the_text_restores_the_state(project):
    assert project.planned("results/table10.csv") == {}


def test_an_edit_between_two_jobs_that_is_reverted_later_publishes_nothing(project, tmp_path):
    """The first evaluation begins with the edit of another process, which is taken back when it has ended."""
    run = project.root / "results/smoke/evaluated/imagenet/mobilenetv2-brecq/full-precision/seed0"
    table = project.root / "results/table10.csv"
    right, metric = table.read_bytes(), project.root / "src/flexround/tasks/images/task.py"
    shim, text = tmp_path / "python", metric.read_text()
    changed = text.replace("100.0 * float(each.mean())", "50.0 * float(each.mean())")
    assert changed != text
    (tmp_path / "changed").write_text(changed)
    (tmp_path / "text").write_text(text)
    shim.write_text(
        f"#!/bin/sh\ncp '{tmp_path}/changed' '{metric}'\n{sys.executable} \"$@\"\ncode=$?\n"
        f"cp '{tmp_path}/text' '{metric}'\nexit $code\n"
    )
    shim.chmod(0o755)
    shutil.rmtree(run)
    path = f"PATH={tmp_path}:{project.environment['PATH']}"
    targets = [str((run / "metrics.json").relative_to(project.root)), "results/table10.csv"]
    arguments = ["--cores", "2", *targets, "--config", "scale=smoke.yaml"]
    done = project.run("env", path, sys.executable, "-m", "snakemake", *arguments, check=False)
    assert done.returncode == 1
    assert "tasks/images/task.py: the code has changed since this run was planned; run the same" in done.stderr
    assert not run.exists() or not list(run.iterdir())
    project.snakemake(*targets)
    assert table.read_bytes() == right


def test_a_file_that_is_no_python_ends_the_run_with_its_line(project):
    """Snakemake alone would take the error of an input function for "up to date"."""
    with edited(project, "src/flexround/quant/adaround.py", "import GAMMA", "import 1 * GAMMA"):
        done = project.snakemake("-n", "results/table10.csv", check=False)
    assert done.returncode != 0
    assert re.search(r"adaround\.py: line \d+: invalid syntax", done.stdout + done.stderr)


def test_an_edit_of_what_both_stages_use_makes_new_networks_before_new_tables(project):
    with edited(project, "src/flexround/quant/grid.py", "MIN_STEP = 1e-8", "MIN_STEP = 2e-8"):
        planned = project.planned("results/table10.csv")
        assert (planned["reconstruct"], planned["evaluate"], planned["tabulate"]) == (8, 12, 1)
        assert "gate" not in planned, "what is in full precision has not changed"
        run = "results/smoke/quantized/imagenet/mobilenetv2-brecq/b-flexround-w4/seed0"
        metrics = project.root / run.replace("quantized", "evaluated") / "metrics.json"
        project.snakemake(str(metrics.relative_to(project.root)))
        manifest = json.loads((project.root / run / "manifest.json").read_text())
        assert json.loads(metrics.read_text())["inputs"][run] == manifest["files"], "evaluated after it was made"
    project.snakemake("results/table10.csv")


def test_an_upgraded_package_is_said_and_reruns_what_is_asked_for(project):
    metrics = project.root / "results/smoke/evaluated/imagenet/mobilenetv2-brecq/full-precision/seed0/metrics.json"
    before, text = metrics.stat(), metrics.read_text()
    metrics.write_text(text.replace(f'"numpy": "{np.__version__}"', '"numpy": "1.0"'))
    os.utime(metrics, ns=(before.st_atime_ns, before.st_mtime_ns))
    done = project.snakemake("-n", "results/table10.csv")
    told = f"numpy {np.__version__} is installed; results in results/smoke that were made with 1.0: 1; they stay"
    assert (done.stdout + done.stderr).count(told) == 1
    assert "Nothing to be done" in done.stdout + done.stderr
    planned = project.planned("results/table10.csv", "--forcerun", "data")
    assert (planned["finetune"], planned["calibrate"], planned["reconstruct"], planned["evaluate"]) == (2, 1, 8, 12)
    metrics.write_text(text)
    os.utime(metrics, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert "is installed;" not in project.snakemake("-n", "results/table10.csv").stderr


def test_a_clock_that_was_set_back_is_noticed_and_the_advice_helps(project):
    kept = [project.root / name for name in ("results", ".jobs", ".code")]
    before = {path: path.stat() for root in kept for path in (root, *root.rglob("*"))}
    day = 86400 * 10**9
    for path, found in before.items():
        os.utime(path, ns=(found.st_atime_ns + day, found.st_mtime_ns + day))  # made a day later than now
    try:
        done = project.snakemake("-n", "results/table10.csv", check=False)
        told = done.stdout + done.stderr
        advice = re.search(r"was written later than this machine's clock says; .* run: (find .*)", told)
        assert done.returncode
        project.run("sh", "-c", advice[1])
        assert project.planned("results/table10.csv") == {}
        with edited(project, "smoke.yaml", "iters: 2, lr: 1.0e-3, a_iters", "iters: 3, lr: 1.0e-3, a_iters"):
            assert project.planned("results/table10.csv").get("reconstruct") == 8
        project.planned("results/table10.csv")  # the job files as they were
    finally:
        for path, found in before.items():
            if path.exists():
                os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("papre", r"scale 'papre' \(did you mean 'paper'\?"),
        ("smoke.yaml seed=3", r"'seed' \(did you mean 'seeds'\?"),
        ("smoke.yaml own=none.yaml", r"none\.yaml: missing"),
    ],
)
def test_bad_config_is_one_clear_message(project, config, message):
    scale, *more = config.split()
    done = project.snakemake("-n", "results/table10.csv", scale=scale, config=more, check=False)
    assert done.returncode != 0
    assert re.search(message, done.stdout + done.stderr), done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr


PLANNED = {
    ("smoke.yaml", "claims.csv"): {"evaluate": 4, "claims": 1, "publish_claims": 1},  # two methods, two sizes
    ("mini", "table2.csv", "checkpoints=resnet18-brecq", "seeds=1"): {"finetune": 1, "reconstruct": 9},
    ("paper", "table3.csv"): {"fetch": 3, "data": 1, "finetune": 3, "gate": 3, "calibrate": 5, "reconstruct": 120}
    | {"evaluate": 123, "tabulate": 1, "publish_table": 1},
}


@pytest.mark.parametrize("asked", PLANNED)
def test_what_is_asked_for_needs_these_jobs_and_no_data(project, asked):
    scale, file, *config = asked
    planned = project.planned(f"results/{file}", scale=scale, config=config)
    assert {rule: planned[rule] for rule in PLANNED[asked]} == PLANNED[asked]
    assert ("tabulate" in planned) == file.startswith("table"), "claims need no table"


def test_the_missing_data_set_is_named_before_anything_else(project):
    done = project.snakemake("results/paper/data/imagenet", scale="paper", check=False)
    assert done.returncode != 0
    log = (project.root / "logs/paper/data/imagenet.log").read_text()
    assert "results/sources/imagenet" in log
    assert "Traceback" not in log


PARSING = """
import sys
sys.path.insert(0, "src")
from flexround.jobs import resolve
from flexround.settings.load import load_params
from flexround.settings.plan import Plan
plan = Plan(load_params("mini"))
[resolve.inputs(plan, "tabulate", number) for number in plan.complete_tables()]
resolve.inputs(plan, "claims")
[resolve.inputs(plan, "evaluate", run) for run in plan.table_runs(3)]
print([name for name in ("torch", "pandas", "torchvision", "scipy") if name in sys.modules])
"""


def test_parsing_imports_nothing_slow(project):
    done = project.run(sys.executable, "-c", PARSING)
    assert done.stdout.strip() == "[]"


MODULE = """
configfile: "config/config.yaml"

module flexround:
    snakefile: "{root}/workflow/Snakefile"
    config: config["flexround"]

use rule * from flexround as flexround_*

rule mine:
    default_target: True
    input: "results/smoke/data/imagenet"
    output: "files.txt"
    shell: "ls {{input}} > {{output}}"
"""


def test_another_workflow_has_this_one_as_a_module(project, tmp_path):
    """Its files are found in the project, results lie in the other workflow's directory, whose settings are its own."""
    (tmp_path / "config").mkdir()
    (tmp_path / "config/config.yaml").write_text("mine: 1\nflexround: {scale: smoke.yaml}\n")
    (tmp_path / "Snakefile").write_text(MODULE.format(root=project.root))
    shutil.copy2(project.root / "smoke.yaml", tmp_path)
    snakemake = sys.executable, "-m", "snakemake", "--cores", "1"
    planned = subprocess.run(
        [*snakemake, "-n", "results/table10.csv"],
        cwd=tmp_path, env=project.environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert re.search(r"flexround_reconstruct +8\n", planned.stdout), planned.stdout + planned.stderr
    done = subprocess.run(snakemake, cwd=tmp_path, env=project.environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "manifest.json" in (tmp_path / "files.txt").read_text()


def test_the_file_of_the_configuration_comes_after_the_command_line_and_is_checked(project):
    config = project.root / "config/config.yaml"
    config.parent.mkdir()
    command = sys.executable, "-m", "snakemake", "--cores", "1", "-n", "results/table10.csv"
    try:
        config.write_text("scale: smoke.yaml\nseeds: 2\n")
        assert "Nothing to be done" not in project.run(*command).stdout
        assert "Nothing to be done" in project.run(*command, "--config", "seeds=1").stdout
        config.write_text("scale: smoke.yaml\nown: [1]\n")
        done = project.run(*command, check=False)
        assert done.returncode
        assert "own" in done.stdout + done.stderr
        assert "Traceback" not in done.stderr
    finally:
        shutil.rmtree(config.parent)
    schema = yaml.safe_load((ROOT / "workflow/schemas/config.schema.yaml").read_text())
    assert {*schema["properties"]} == {*CONFIG_KEYS}
