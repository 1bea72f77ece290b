"""The Snakemake workflow, run for real on a copy of the project at a smoke scale."""

import csv
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
COPIED = ("src", "params", "workflow", "profiles", "Snakefile")


class Project:
    """A copy of the project that can be run and edited."""

    def __init__(self, root):
        self.root = root
        for name in COPIED:
            source = ROOT / name
            copy = shutil.copytree if source.is_dir() else shutil.copy2
            copy(source, root / name)
        shutil.copy2(ROOT / "tests/smoke.yaml", root / "smoke.yaml")

    def snakemake(self, *arguments, scale="smoke.yaml", config=(), check=True):
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        environment = os.environ | {"PYTHONPATH": str(self.root / "src"), "PATH": path}
        command = [sys.executable, "-m", "snakemake", "--cores", "2", *arguments, "--config", f"scale={scale}", *config]
        done = subprocess.run(command, cwd=self.root, env=environment, capture_output=True, text=True, check=False)
        if check:
            assert done.returncode == 0, done.stdout + done.stderr
        return done

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
    project = Project(tmp_path_factory.mktemp("project"))
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


def test_every_job_has_a_log_and_a_benchmark(project):
    logs = {p.relative_to(project.root / "logs").with_suffix("") for p in (project.root / "logs/smoke").rglob("*.log")}
    timings = {
        p.relative_to(project.root / "benchmarks").with_suffix("")
        for p in (project.root / "benchmarks/smoke").rglob("*.jsonl")
    }
    assert logs == timings
    assert len(logs) >= 18
    log = (project.root / "logs/smoke/quantized/imagenet/mobilenetv2-brecq/b-flexround-w4/seed0.log").read_text()
    assert len(re.findall(r"weights \d+/20", log)) == 20, "one line per block"


def test_a_second_run_does_nothing(project):
    assert project.planned("results/table10.csv") == {}


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
    expected = {"own_reconstruct": 2, "own_evaluate": 2, "tabulate": 1, "publish_table": 1}
    assert project.planned("results/table10.csv", config=config) == expected
    project.snakemake("results/table10.csv", config=config)
    rows = [r for r in csv.DictReader((project.root / "results/table10.csv").open()) if r["recipe"] == "b-nudge-w4"]
    assert {(row["method"], row["published"], row["status"]) for row in rows} == {("B + Nudge", "", "computed")}
    for suffix in ("tex", "html"):
        assert "B + Nudge" in (project.root / f"results/table10.{suffix}").read_text()
    assert project.planned("results/table10.csv", config=config) == {}

    moved = shutil.copytree(own.parent, own.parent / "moved") / own.name
    assert project.planned("results/table10.csv", config=[f"own={moved}"]) == {}, (
        "where the file lies is of no interest"
    )
    own.with_name("my_rounding.py").write_text(own.with_name("my_rounding.py").read_text() + "# edited\n")
    assert project.planned("results/table10.csv", config=config) == expected

    project.snakemake("results/table10.csv")
    assert "nudge" not in (project.root / "results/table10.csv").read_text()


def test_a_mistake_in_the_users_file_is_one_message(project, own):
    own.write_text(own.read_text().replace("my_rounding:Nudge", "my_rounding:Nugde"))
    done = project.snakemake("-n", "results/table10.csv", config=[f"own={own}"], check=False)
    assert done.returncode != 0
    assert "has no class 'Nugde' (did you mean 'Nudge'?" in done.stdout + done.stderr


def test_claims_need_every_table_and_figure_7(project):
    planned = project.planned("results/claims.csv")
    assert (planned["evaluate"], planned["claims"], planned["publish_claims"]) == (4, 1, 1), "two methods, two sizes"
    assert "tabulate" not in planned


def test_any_first_targets_find_the_hashes_of_their_code(project):
    shutil.rmtree(project.root / ".code")
    runs = ("full-precision/seed0", "b-rtn-w4/seed1")
    targets = [f"results/smoke/evaluated/imagenet/mobilenetv2-brecq/{run}/metrics.json" for run in runs]
    planned = project.planned(*targets)
    assert planned["calibrate"] == 1, planned


def test_an_edit_reruns_exactly_what_depends_on_it(project):
    def edited(name):
        path = project.root / "src/flexround" / name
        before = path.read_text()
        path.write_text(before + "\n# edited\n")
        try:
            return project.planned("results/table10.csv")
        finally:
            path.write_text(before)

    assert edited("tools/plan.py") == {}
    assert edited("quant/adaquant.py") == {}
    assert edited("results/render/latex.py") == {"tabulate": 1, "publish_table": 1}
    adaround = edited("quant/adaround.py")
    assert adaround["reconstruct"] == 4, "two checkpoints, with and without equalization"
    assert "finetune" not in adaround
    assert "data" not in adaround
    assert edited("quant/flexround.py")["reconstruct"] == 4
    assert edited("mini/digits.py")["data"] == 1
    assert project.planned("results/table10.csv") == {}, "restoring the text restores the state"


def test_an_edit_of_a_recipe_reruns_that_recipe_alone(project):
    path = project.root / "params/recipes.yaml"
    before = path.read_text()
    path.write_text(before.replace("\n  b-adaround-w4: {", "\n  b-adaround-w4: {hyper: {reg_weight: 0.5}, "))
    try:
        planned = project.planned("results/table10.csv")
    finally:
        path.write_text(before)
    assert planned["reconstruct"] == 2
    assert planned["evaluate"] == 2


def test_a_damaged_output_is_noticed_by_its_reader(project):
    weights = project.root / "results/smoke/checkpoints/imagenet/mobilenetv2-brecq/model.safetensors"
    before = weights.read_bytes()
    weights.write_bytes(before[:-8])
    try:
        target = "results/smoke/evaluated/imagenet/mobilenetv2-brecq/full-precision/seed0/metrics.json"
        done = project.snakemake(target, "--forcerun", "evaluate", "--quiet", "all", check=False)
    finally:
        weights.write_bytes(before)
    assert done.returncode != 0
    log = project.root / "logs/smoke/evaluated/imagenet/mobilenetv2-brecq/full-precision/seed0.log"
    assert "its manifest says" in log.read_text()
    project.snakemake("results/table10.csv")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("papre", r"scale 'papre' \(did you mean 'paper'\?"),
        ("smoke.yaml seed=3", r"'seed' \(did you mean 'seeds'\?"),
        ("smoke.yaml seeds=0", r"seeds='?0'?: give a whole number"),
    ],
)
def test_bad_config_is_one_clear_message(project, config, message):
    scale, *more = config.split()
    done = project.snakemake("-n", "results/table10.csv", scale=scale, config=more, check=False)
    assert done.returncode != 0
    assert re.search(message, done.stdout + done.stderr), done.stdout + done.stderr


def test_the_papers_own_run_is_planned_without_its_data(project):
    planned = project.planned("results/table3.csv", scale="paper")
    assert planned == {
        "fetch": 3,
        "data": 1,
        "finetune": 3,
        "calibrate": 5,
        "reconstruct": 120,
        "evaluate": 123,
        "tabulate": 1,
        "publish_table": 1,
    }


def test_data_sets_and_models_are_fetched_before_they_are_read(project):
    planned = project.planned("results/table12.csv", "--config", "seeds=1", scale="paper")
    assert (planned["fetch"], planned["data"], planned["finetune"]) == (3, 1, 2)


def test_the_missing_data_set_is_named_before_anything_else(project):
    done = project.snakemake("results/paper/data/imagenet/manifest.json", scale="paper", check=False)
    assert done.returncode != 0
    log = (project.root / "logs/paper/data/imagenet.log").read_text()
    assert "results/sources/imagenet" in log
    assert "Traceback" not in log


def test_parsing_imports_neither_torch_nor_pandas(project):
    code = (
        "import sys; sys.path.insert(0, 'src')\n"
        "from flexround.settings.load import load_params\nfrom flexround.settings.plan import Plan\n"
        "plan = Plan(load_params('mini'))\n[plan.table_runs(n) for n in plan.complete_tables()]\n"
        "plan.sources('reconstruct')\nprint([m for m in ('torch', 'pandas', 'torchvision') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=project.root, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
