"""A table of the project's own is one YAML file: everything is made of it, without numbers of the paper."""

import csv
import shutil
from pathlib import Path

import pytest
from table_runs import hits, write_run
from visible_text import visible

from flexround.jobs.tabulate import settings_of
from flexround.results import cells, grid, paper_numbers, settings_table, table_csv
from flexround.results.cells import Scope
from flexround.results.claims import errata, specs, verdicts
from flexround.results.render import document, html, latex, report_page, terminal
from flexround.settings import load
from flexround.settings.layout import PARAMS, Run
from flexround.settings.plan import Plan

RUNS = """
number: 25
label: tab:own
caption: A table of our own.
descriptive: [Method]
columns: [{name: ResNet-18, task: imagenet, checkpoint: resnet18-brecq, metrics: [top1]}]
groups:
  - rows:
      - {recipe: q-adaround-w4a4, method: Q + AdaRound}
      - {recipe: q-flexround-w4a4, method: Q + FlexRound}
tolerance: {top1: 0.3}
"""
ENVIRONMENT = {"python": "3.11", "threads": 1, "device": "CPU", "packages": {"torch": "2"}}
SETTINGS = """
number: 26
label: tab:own-settings
caption: Settings of our own.
descriptive: [Configuration]
columns: [{name: SQuAD}]
tasks: [squad]
settings: [{method: Epoch, column: SQuAD, setting: train.epochs, checkpoints: [bert-base]}]
"""


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    params = tmp_path_factory.mktemp("clone") / "params"
    shutil.copytree(PARAMS, params)
    (params / "tables/table25.yaml").write_text(RUNS)
    (params / "tables/table26.yaml").write_text(SETTINGS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(load, "PARAMS", params)
        return Plan(load.load_params("mini"))


@pytest.fixture(scope="module")
def root(plan: Plan, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project directory with the two tables, made of evaluated runs."""
    root, params, scale = tmp_path_factory.mktemp("work"), plan.params, plan.scale
    for recipe, count in (("q-adaround-w4a4", 700), ("q-flexround-w4a4", 740)):
        run = Run("mini", "imagenet", "resnet18-brecq", recipe, 0)
        write_run(root / "results", run, hits(count), ["top1"], seconds=1.0, environment=ENVIRONMENT)
    table, settings, numbers = params.tables[25], params.tables[26], paper_numbers.load()
    found = cells.collect(table, Scope("mini", params.recipes.recipes, 1, root / "results"))
    texts = {
        25: table_csv.to_csv(found, numbers, table, scale),
        26: settings_table.to_csv(settings, settings_of(plan, settings), scale, numbers),
    }
    for number, text in texts.items():
        (root / f"results/mini/table{number}.csv").write_text(text)
        (root / f"results/mini/table{number}.tex").write_text(
            latex.render(grid.read(text), params.tables[number], scale)
        )
    return root


def read(root: Path, name: str) -> str:
    return (root / "results/mini" / name).read_text()


def test_the_csv_has_no_published_numbers(root: Path) -> None:
    lines = list(csv.DictReader(read(root, "table25.csv").splitlines()))
    facts = [(line["value"], line["published"], line["status"], line["best"]) for line in lines]
    assert facts == [("70.00", "", "computed", "0"), ("74.00", "", "computed", "1")]
    (setting,) = csv.DictReader(read(root, "table26.csv").splitlines())
    assert (setting["published"], setting["status"]) == ("", "computed")


@pytest.mark.parametrize("comparable", [True, False])
def test_no_rendering_shows_an_empty_number_of_the_paper(root: Path, plan: Plan, comparable: bool) -> None:
    scale = plan.scale.model_copy(update={"comparable": comparable})
    for number in (25, 26):
        text, table = read(root, f"table{number}.csv"), plan.params.tables[number]
        assert "()" not in visible(html.render(grid.read(text), table, scale))
        shown = terminal.render(grid.read(text), table, scale)
        assert "()" not in shown
        assert shown.startswith(f"Table {number}: ours. ")
    assert r"Q + FlexRound & \bfseries 74.00 \\" in read(root, "table25.tex")


def test_the_report_shows_it_among_the_others(root: Path, plan: Plan) -> None:
    shown = visible(report_page.render(root, plan))
    assert "A table of our own" in shown
    assert "()" not in shown


def test_the_document_has_it_after_the_papers(root: Path, plan: Plan) -> None:
    assert document.parts([table.name for table in plan.params.tables.values()])[-1].items == ("table25", "table26")
    text = document.source(root, plan, "mini")
    assert text.index("tab:own}") < text.index("tab:own-settings}")


def test_claims_compare_it_and_errata_leave_it_out(root: Path, plan: Plan) -> None:
    found = cells.collect(plan.params.tables[25], Scope("mini", plan.params.recipes.recipes, 1, root / "results"))
    claim = specs.Claim(
        where="here", text="ours", places=("table 25",), pairs=(("q-flexround-w4a4", "q-adaround-w4a4"),)
    )
    comparisons = verdicts.compare({"ours": claim}, {"table 25": verdicts.Place(found, {})})
    (line,) = csv.DictReader(verdicts.to_csv(comparisons, {}, specs.load()).splitlines())
    assert (line["margin"], line["published_margin"], line["verdict"]) == ("4.00", "", "holds")
    assert errata.find(errata.printed(found, paper_numbers.load(), frozenset()), comparisons, {}) == []
