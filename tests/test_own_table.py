"""A table of the project's own is one YAML file: everything is made of it, without numbers of the paper."""

import csv
import shutil

import pytest
from table_runs import hits, write_run
from visible_text import visible

from flexround.results import cells, grid, paper_numbers, table_csv
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
SCORES = {"q-adaround-w4a4": 700, "q-flexround-w4a4": 740}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A plan with the table, a project directory with its runs and files, its cells and its CSV."""
    root = tmp_path_factory.mktemp("clone")
    shutil.copytree(PARAMS, root / "params", ignore=shutil.ignore_patterns("networks", "data"))
    (root / "params/tables/table25.yaml").write_text(RUNS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(load, "PARAMS", root / "params")
        plan = Plan(load.load_params("mini"))
    for recipe, count in SCORES.items():
        run = Run("mini", "imagenet", "resnet18-brecq", recipe, 0)
        write_run(root / "results", run, hits(count), ["top1"], seconds=1.0, environment=ENVIRONMENT)
    table, scope = plan.params.tables[25], Scope("mini", plan.params.recipes.recipes, 1, root / "results")
    found = cells.collect(table, scope)
    text = table_csv.to_csv(found, paper_numbers.load(), table, plan.scale)
    (root / "results/mini/table25.csv").write_text(text)
    (root / "results/mini/table25.tex").write_text(latex.render(grid.read(text), table, plan.scale))
    return plan, root, found, text


def test_the_csv_has_no_published_numbers_and_no_rendering_an_empty_one(made):
    plan, _, _, text = made
    facts = [
        (line["value"], line["published"], line["status"], line["best"]) for line in csv.DictReader(text.splitlines())
    ]
    assert facts == [("70.00", "", "computed", "0"), ("74.00", "", "computed", "1")]
    for comparable in (True, False):
        shown = grid.read(text), plan.params.tables[25], plan.scale.model_copy(update={"comparable": comparable})
        said = terminal.render(*shown)
        assert "()" not in visible(html.render(*shown)) + said
        assert said.startswith("Table 25: ours. ")
        assert r"Q + FlexRound & \bfseries 74.00 \\" in latex.render(*shown)


def test_the_report_and_the_document_show_it_after_the_papers(made):
    plan, root, *_ = made
    shown = visible(report_page.render(root, plan))
    assert "A table of our own" in shown
    assert "()" not in shown
    assert document.parts([table.name for table in plan.params.tables.values()])[-1].items == ("table25",)
    assert "tab:own}" in document.source(root, plan, "mini")


def test_claims_compare_it_and_errata_leave_it_out(made):
    found = made[2]
    pairs = (("q-flexround-w4a4", "q-adaround-w4a4"),)
    claim = specs.Claim(where="here", text="ours", places=("table 25",), pairs=pairs)
    comparisons = verdicts.compare({"ours": claim}, {"table 25": verdicts.Place(found, {})})
    (line,) = csv.DictReader(verdicts.to_csv(comparisons, {}, specs.load()).splitlines())
    assert (line["margin"], line["published_margin"], line["verdict"]) == ("4.00", "", "holds")
    assert errata.find(errata.printed(found, paper_numbers.load(), frozenset()), comparisons, {}) == []
