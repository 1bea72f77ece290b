"""What users of Snakemake and DVC expect: lint, report, config/, metrics and plots."""

import csv
import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml
from published import Clone, copy_names
from table_runs import loaded

from flexround.results import published_results
from flexround.results.table_csv import summarise
from flexround.settings.plan import Config

ROOT = Path(__file__).resolve().parent.parent


def run(root: Path, *command: str, check: bool = True, **variables: str) -> subprocess.CompletedProcess[str]:
    clone = Clone(root)
    clone.environment |= {"FLEXROUND_WORKERS": "0"} | variables
    return clone.run(*command, check=check)


def test_snakemake_lints_nothing_and_reports_a_table(tmp_path):
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


def test_every_config_key_is_described_and_no_other():
    text = (ROOT / "config/README.md").read_text()
    assert {*re.findall(r"^\| `(\w+)=", text, re.MULTILINE)} == {*Config.model_fields}


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
    assert page.count("vegaEmbed(") == 29
    assert len(list((clone / "plots/static").glob("*.png"))) == 2


def test_published_summaries_fit_the_published_tables():
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
