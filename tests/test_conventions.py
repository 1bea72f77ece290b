"""What users of Snakemake, DVC and GitHub expect: lint, report, catalog, config/, metrics, plots, CI, forms, hooks."""

import csv
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from published import Clone, copy_names
from table_runs import loaded

from flexround.results import published_results
from flexround.results.summary import summarise
from flexround.settings.plan import CONFIG_KEYS

ROOT = Path(__file__).resolve().parent.parent


def run(root: Path, *command: str, check: bool = True, **variables: str) -> subprocess.CompletedProcess[str]:
    clone = Clone(root)
    clone.environment |= {"FLEXROUND_WORKERS": "0"} | variables
    return clone.run(*command, check=check)


def test_snakemake_has_no_lints_and_its_report_has_a_table_with_its_caption(tmp_path):
    """The table is one of settings, which needs no run."""
    copy_names(tmp_path, "src", "params", "workflow", "profiles", "Snakefile")
    lints = run(tmp_path, "snakemake", "--lint")
    assert "Lints for" not in lints.stdout + lints.stderr
    reported = ("--report", "report.html", "--report-after-run")
    run(tmp_path, "snakemake", "--cores", "1", "results/table13.csv", *reported)
    page = (tmp_path / "report.html").read_text()
    assert "Tables, figures and claims of" in page
    assert "Table 13 at the scale mini." in page
    results = json.loads(re.search(r"var results = (\{.*?\});", page, re.DOTALL)[1])
    assert {tuple(each["labels"].values()) for each in results.values()} == {
        ("13", "squad", f) for f in ("numbers", "page")
    }


def test_tables_figures_and_claims_are_marked_for_the_report():
    rules = "".join(path.read_text() for path in (ROOT / "workflow/rules").glob("*.smk"))
    assert {*re.findall(r'category="(\w+)"', rules)} == {"Tables", "Figures", "Claims"}
    captions = re.findall(r'caption="\.\./report/(\w+\.rst)"', rules)
    assert {*captions, "workflow.rst"} == {path.name for path in (ROOT / "workflow/report").iterdir()}


def test_every_config_key_is_described_and_no_other():
    text = (ROOT / "config/README.md").read_text()
    assert {*re.findall(r"^\| `(\w+)=", text, re.MULTILINE)} == {*CONFIG_KEYS}


def test_the_catalog_knows_what_the_workflow_has():
    usage = yaml.safe_load((ROOT / ".snakemake-workflow-catalog.yml").read_text())["usage"]
    assert usage["software-stack-deployment"]["report"] is True
    assert usage["software-stack-deployment"]["apptainer"] is True
    assert (ROOT / "workflow/Snakefile").exists(), "the catalog asks for it"
    assert "container:" in (ROOT / "workflow/rules/common.smk").read_text()


def read_yaml(name: str) -> dict:
    return yaml.safe_load((ROOT / name).read_text())


def test_ci_runs_all_checks_and_the_site_is_built_on_pythons_that_the_package_supports():
    workflow = read_yaml(".github/workflows/ci.yml")
    assert {*workflow[True]} == {"push", "pull_request"}, "YAML 1.1 reads `on` as a boolean"
    assert workflow["permissions"] == {"contents": "read"}
    steps = workflow["jobs"]["ci"]["steps"]
    assert [step["run"] for step in steps if "run" in step] == [".ci/run"]
    assert os.access(ROOT / ".ci/run", os.X_OK)
    assert all(re.fullmatch(r"actions/[a-z-]+@v\d+", step["uses"]) for step in steps if "uses" in step)
    settings = {key: value for step in steps for key, value in step.get("with", {}).items()}
    assert all((ROOT / name).exists() for name in re.findall(r"hashFiles\('(.+?)'\)", settings["key"]))
    site = read_yaml(".readthedocs.yaml")["build"]
    assert site["commands"][0] == "make docs"
    supported = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    for version in (settings["python-version"], site["tools"]["python"]):
        assert f"Programming Language :: Python :: {version}" in supported


def test_issue_forms_have_the_keys_that_forms_need():
    forms = {path.stem: yaml.safe_load(path.read_text()) for path in (ROOT / ".github/ISSUE_TEMPLATE").iterdir()}
    links = forms.pop("config")["contact_links"]
    assert all({*link} == {"name", "url", "about"} for link in links)
    assert {*forms} == {"wrong-number", "new-rounding", "new-table"}
    for form in forms.values():
        assert {*form} == {"name", "description", "title", "body"}
        fields = [field for field in form["body"] if field["type"] != "markdown"]
        assert {field["type"] for field in fields} <= {"input", "textarea", "dropdown"}
        assert all(field["attributes"]["label"] for field in fields)
        assert len({field["id"] for field in fields}) == len(fields), "unique identifiers"
        for target in re.findall(r"\.\./blob/HEAD/([^)#]+)", str(form)):
            assert (ROOT / target).exists()


def test_the_hooks_are_the_commands_of_make_lint():
    hooks = read_yaml(".pre-commit-config.yaml")["repos"][0]["hooks"]
    assert all(hook["language"] == "system" and hook["id"] and hook["name"] for hook in hooks)
    lint = re.search(r"^lint:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)[1]
    assert [hook["entry"] for hook in hooks] == [f".venv/bin/{line.strip()}" for line in lint.splitlines()]


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What git has, without any result computed, and a programs' directory without programs."""
    root = tmp_path_factory.mktemp("clone")
    copy_names(root, "params", "results/reference", "docs/figures", ".dvc/plots", ".dvc/config", "dvc.yaml", "Makefile")
    run(root, "git", "init", "--quiet")
    run(root, "git", "add", ".")
    run(root, "git", "-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "--message", "all")
    (root / ".venv/bin").mkdir(parents=True)
    (root / ".venv/installed").touch()
    return root


def test_dvc_shows_what_is_published_in_a_fresh_clone(clone):
    shown = json.loads(run(clone, "dvc", "metrics", "show", "--json").stdout)[""]["data"]
    assert len(shown) == 2
    assert shown["results/reference/metrics.json"]["data"]["cells"]["computed"] > 1000
    plots = run(clone, "dvc", "plots", "show", "--out", "plots")
    assert "failed" not in plots.stdout + plots.stderr
    page = (clone / "plots/index.html").read_text()
    assert page.count("vegaEmbed(") == 27
    assert len(list((clone / "plots/static").glob("*.png"))) == 2


def test_a_pull_needs_a_remote_and_finds_the_tool_that_is_installed_in_the_clone(clone):
    done = run(clone, "make", "-o", ".venv/installed", "pull", check=False)
    assert done.returncode != 0
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert "no remote is known to this clone: make pull REMOTE=" in done.stderr
    (clone / ".venv/bin/dvc").symlink_to(Path(sys.executable).with_name("dvc"))
    (clone / ".dvc/config.local").write_text("[core]\n    remote = storage\n")
    assert "dvc pull" in run(clone, "make", "--dry-run", "-o", ".venv/installed", "pull", PATH="/usr/bin:/bin").stdout


def test_the_published_summaries_are_those_of_the_published_tables():
    for scale in ("mini", "real"):
        params = loaded(scale)
        directory = ROOT / published_results.DIRECTORY
        tables = [directory / f"{table.name}.csv" for _, table in sorted(params.tables.items())]
        tables = [table for table in tables if table.exists()]  # without one of them the summary has other counts
        published = directory / published_results.published_name(params.scale, published_results.SUMMARY)
        assert json.loads(published.read_text()) == summarise(tables), scale
    assert summarise([]) == {"cells": {}}, "of a scale without complete tables"


def test_every_published_table_with_measurements_is_plotted():
    plots = [
        next(iter(plot)) for plot in yaml.safe_load((ROOT / "dvc.yaml").read_text())["plots"] if isinstance(plot, dict)
    ]
    tables = [
        path
        for path in (ROOT / published_results.DIRECTORY).glob("*.csv")
        if re.fullmatch(r"(table|real)\d+", path.stem)
    ]
    measured = [path for path in tables if any(row["n_examples"] for row in csv.DictReader(path.open()))]
    assert sorted(plots) == sorted(str(path.relative_to(ROOT)) for path in measured)
