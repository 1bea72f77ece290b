"""The pages that are made for the site, and what is done to those that are written."""

import csv
import importlib
import re
import sys
from pathlib import Path

import pytest
from table_runs import loaded

from flexround.results import paper_numbers
from flexround.results.render import markdown, table_page
from flexround.settings.schema import Hyper

ROOT = Path(__file__).resolve().parent.parent
MINI, PAPER, REAL = (loaded(name) for name in ("mini", "paper", "real"))
BOLD = paper_numbers.load_bold()


@pytest.fixture(scope="module")
def made():
    sys.path.insert(0, str(ROOT / "docs"))
    module = importlib.import_module("made")
    module.load_params = loaded
    return module


def test_each_table_has_a_page(made):
    pages = made.tables()
    assert set(pages) == {
        "tables",
        *(f"tables/table{n}" for n in MINI.tables),
        *(f"tables/real{n}" for n in REAL.tables),
    }
    assert all(name in pages["tables"] for name in pages)
    for name, text in pages.items():
        if name != "tables" and not re.search(r"^\| .*\d", text, re.MULTILINE):
            assert not (ROOT / f"results/reference/{Path(name).name}.csv").exists(), name
            assert f"make results/{Path(name).name}.csv" in text


def test_the_ranking_has_every_line_of_what_is_published(made):
    page = made.ranked()["ranking"]
    (scale,) = re.findall(r"^## Scale (\w+)$", page, re.MULTILINE)
    published = list(csv.DictReader((ROOT / "results/reference/ranking.csv").open()))
    assert scale == "mini"
    assert len(re.findall(r"^\| .* \|$", page, re.MULTILINE)) == len(published) + 2
    first = published[0]
    assert f"| all | {first['method']} | {first['unbeaten']} | {first['cells']} | {first['leads']} |" in page


def test_every_hyper_parameter_has_a_row_with_values_and_meaning(made):
    text = made.hyper_parameters()["hyper-parameters"]
    rows = [re.split(r" (?<!\\)\| ", line.strip("| \n")) for line in text.splitlines() if line.startswith("| `")]
    assert [row[0] for row in rows] == [f"`{name}`" for name in Hyper.model_fields]
    assert all(len(row) == 3 and all(row) for row in rows)
    assert "| `iters` | from 0 to 1e+08 | iterations of a block" in text
    assert "| `lr` | above 0 to 100, or for each group: above 0 to 100 | learning rate" in text


def test_a_page_has_the_papers_numbers_with_their_errata_ours_the_claims_and_the_commands():
    paper, mini, big = re.split(r"^## .*$", table_page.page(3, [MINI, PAPER], BOLD, ROOT), flags=re.MULTILINE)[1:]
    assert "| B + FlexRound (Ours) | 4/4 | **69.32** / **88.83** |" in paper
    assert re.search(r"\| B \+ FlexRound \(Ours\) \| 4/4 \| \**9\d\.\d\d", mini)
    assert "top-1 / top-5 |" in mini
    assert "69.32" not in mini, "the paper's numbers are not ours"
    assert "not the paper's numbers" in mini
    assert re.search(r"^\* With activations quantized too FlexRound is better .*: \*\*\d+ holds", mini, re.MULTILINE)
    assert "    make results/table3.csv\n" in mini
    assert "No results of this scale are published here." in big
    assert "    make results/table3.csv SCALE=paper\n" in big
    assert "(a)" in table_page.page(20, [MINI], BOLD, ROOT).split("## Scale")[0]
    real = table_page.page(1, [REAL], BOLD, ROOT)
    assert "## In the paper" not in real
    assert "    make results/real1.csv\n" in real
    assert re.search(r"^\| B \+ FlexRound \(Ours\) .*\d\d\.\d\d", real, re.MULTILINE)
    assert markdown.escape("[s1=*a*;\n|b_c|]") == r"\[s1=\*a\*; \|b\_c\|\]"


def test_the_reference_has_what_is_public_and_every_module_of_a_room(made):
    pages = made.reference()
    assert ".. autofunction:: flexround.quantize" in pages["reference/flexround"]
    assert ".. autoclass:: flexround.Recipe" in pages["reference/flexround"]
    for room in made.ROOMS:
        files = {path.stem for path in (ROOT / "src/flexround" / room).glob("*.py")} - {"__init__"}
        modules = set(re.findall(rf"automodule:: flexround\.{room}\.(\w+)$", pages[f"reference/{room}"], re.MULTILINE))
        assert files == modules, room


def test_images_stay_images_and_links_to_code_become_text(made):
    conf = importlib.import_module("conf")
    images = "![a](figures/bits.png) [![a](figures/bits.png)](#here)"
    text = [f"{images} [b](../params) [c](results.md) [d](https://x.org)"]
    conf.complete(None, "docs/none", text)
    assert text == [f"{images} b [c](results.md) [d](https://x.org)"]
