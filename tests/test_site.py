"""The pages that are made for the site, and the changes to written pages."""

import importlib
import re
from types import SimpleNamespace

import pytest
from report_case import published
from table_runs import loaded

from flexround.settings.layout import ROOT
from flexround.settings.schema import Hyper


@pytest.fixture(scope="module")
def made():
    """Return docs/made.py; the reports are rendered once for all tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "docs")
        module = importlib.import_module("made")
        patch.setattr(module, "load_params", loaded)
        patch.setattr(module, "report_page", SimpleNamespace(render=lambda _, plan: published(plan.scale.name)))
        yield module


def test_each_scale_with_published_tables_has_a_report(made, tmp_path):
    page = made.tables(tmp_path)["tables"]
    reports = {path.name for path in tmp_path.glob("*.html")}
    assert reports == {"report-mini.html", "report-real.html"}
    assert all(f'href="../../{name}"' in page for name in reports)
    assert (tmp_path / "reference/real1.csv").exists(), "linked by the report"


def test_every_hyper_parameter_has_a_row_with_values_and_meaning(made):
    text = made.hyper_parameters()["hyper-parameters"]
    rows = [re.split(r" (?<!\\)\| ", line.strip("| \n")) for line in text.splitlines() if line.startswith("| `")]
    assert [row[0] for row in rows] == [f"`{name}`" for name in Hyper.model_fields]
    assert all(len(row) == 3 and all(row) for row in rows)
    assert "| `iters` | from 0 to 1e+08 | iterations of a block" in text
    assert "| `lr` | above 0 to 100, or for each group: above 0 to 100 | learning rate" in text


def test_the_reference_has_public_names_and_all_modules_of_rooms(made):
    pages = made.reference()
    assert ".. autofunction:: flexround.quantize" in pages["reference/flexround"]
    assert ".. autoclass:: flexround.Recipe" in pages["reference/flexround"]
    for room in made.ROOMS:
        files = {path.stem for path in (ROOT / "src/flexround" / room).glob("*.py")} - {"__init__"}
        modules = set(re.findall(rf"automodule:: flexround\.{room}\.(\w+)$", pages[f"reference/{room}"], re.MULTILINE))
        assert files == modules, room


def test_images_stay_images_and_links_to_code_become_text(made):
    images = "![a](figures/bits.png) [![a](figures/bits.png)](#here)"
    text = [f"{images} [b](../params) [c](results.md) [d](https://x.org)"]
    importlib.import_module("conf").complete(None, "docs/none", text)
    assert text == [f"{images} b [c](results.md) [d](https://x.org)"]
