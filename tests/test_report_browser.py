"""The report in a browser: no complaints, sorting, filtering, plots, comparison, provenance by mouse and keyboard."""

import csv
import re
import shutil
from pathlib import Path

import pytest
from browser import CHROMIUM, Browser
from report_case import PLAN, fill_root

from flexround.results import paper_numbers
from flexround.results.render import report_page
from flexround.settings.layout import ROOT
from flexround.settings.load import load_params
from flexround.settings.plan import Plan

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium")


@pytest.fixture(scope="module")
def html(tmp_path_factory):
    root = tmp_path_factory.mktemp("work")
    fill_root(root)
    return report_page.render(root, PLAN)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with Browser(tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.fixture(scope="module")
def clone(tmp_path_factory) -> Path:
    """The report of a project without results, at a scale with many methods."""
    root = tmp_path_factory.mktemp("clone")
    shutil.copytree(ROOT / "results/reference", root / "results/reference")
    (root / "report.html").write_text(report_page.render(root, Plan(load_params("real"))))
    return root / "report.html"


@pytest.fixture
def opened(browser, html, tmp_path):
    (tmp_path / "report.html").write_text(html)
    yield from without_complaints(browser, tmp_path / "report.html")


@pytest.fixture
def cloned(browser, clone):
    yield from without_complaints(browser, clone)


def without_complaints(browser: Browser, page: Path):
    """Yield a browser that shows a page; errors in its console, and any request, fail the test."""
    browser.errors.clear()
    browser.resize(1280)
    browser.dark(False)
    browser.open(page)
    yield browser
    assert browser.errors == []


CELL = "document.activeElement.id"
IS_OPEN = "document.getElementById('provenance').open"
ROWS = "[...document.querySelectorAll('#table3 tbody tr')]"
COLUMN = f"{ROWS}.map(row => row.querySelector('[data-column=\"0\"]').dataset.value)"


def test_a_heading_sorts_up_down_and_back(opened):
    order = opened.evaluate(COLUMN)
    heading = "#table3 th[data-column='0'] .sort"
    opened.click(heading)
    assert opened.evaluate(COLUMN) == sorted(order, key=float) != order
    assert opened.evaluate("document.querySelector('#table3 th[data-column=\"0\"]').ariaSort") == "ascending"
    opened.press("Enter")
    assert opened.evaluate(COLUMN) == sorted(order, key=float, reverse=True)
    opened.click(heading)
    assert opened.evaluate(COLUMN) == order
    assert opened.evaluate("document.querySelectorAll('#table3 tbody')[1].rows.length") == 4


def test_a_click_opens_the_provenance_and_escape_closes_it(opened):
    opened.click("[id='cell-3.24']")
    assert opened.evaluate(IS_OPEN)
    text = opened.evaluate("document.getElementById('provenance').innerText")
    assert "Table 3: Q + FlexRound (Ours), 4/4, ResNet-18, top-1" in text
    assert "learning rate\tlr\tv: 0.1, s1: 2\tsection 9" in text
    assert "block </script> b" in text
    assert opened.evaluate("location.hash") == "#cell-3.24"
    opened.press("Escape")
    assert not opened.evaluate(IS_OPEN)
    assert opened.evaluate(CELL) == "cell-3.24"


def test_the_keyboard_reaches_a_cell_and_opens_it(opened):
    opened.evaluate("document.querySelector('#table3 .scroll').focus()")
    while not opened.evaluate(CELL).startswith("cell-"):
        opened.press("Tab")
    assert opened.evaluate(CELL) == "cell-3.0"
    assert opened.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    opened.press("ArrowRight")
    opened.press("ArrowDown")
    assert opened.evaluate(CELL) == "cell-3.7"
    opened.press("Enter")
    assert opened.evaluate(IS_OPEN)
    opened.press("Escape")
    opened.press("Tab")
    assert not opened.evaluate(CELL).startswith("cell-3")  # one stop for the whole table


def test_a_family_is_filtered(opened):
    opened.click("input[value=SQuAD] + span")
    visible = "[...document.querySelectorAll('#status tbody tr, section[data-family]')].filter(e => e.offsetParent)"
    assert opened.evaluate(f"{visible}.map(e => e.id || e.cells[0].textContent)") == ["Table 12", "Table 13", "table13"]
    assert opened.evaluate("document.querySelector('#filter output').textContent") == "2 tables shown"


@pytest.mark.parametrize("page", ["opened", "cloned"])
@pytest.mark.parametrize("width", [360, 1280])
def test_the_page_never_scrolls_sideways(page, width, request):
    shown = request.getfixturevalue(page)
    shown.resize(width)
    shown.evaluate("document.querySelectorAll('details').forEach((each) => (each.open = true))")
    assert shown.evaluate("document.documentElement.scrollWidth") <= width
    sides = "(({left, right}) => [left, right])(document.querySelector('#status tbody .badge').getBoundingClientRect())"
    left, right = shown.evaluate(sides)
    assert 0 < left < right <= shown.evaluate("document.querySelector('#status .scroll').getBoundingClientRect().right")


def test_a_phone_shows_a_number_beside_the_labels_of_every_table(cloned):
    cloned.resize(390)
    first = "[...document.querySelectorAll('.values tbody tr:first-child th + td')]"
    edges = f"{first}.map(cell => cell.querySelector('button').getBoundingClientRect().right)"
    assert max(cloned.evaluate(edges)) <= 390


@pytest.mark.parametrize("width", [360, 1280])
def test_a_sheet_never_scrolls_sideways(opened, width):
    opened.resize(width)
    opened.evaluate("document.getElementById('cell-3.24').click()")
    assert opened.evaluate("document.getElementById('provenance').scrollWidth") <= opened.evaluate(
        "document.getElementById('provenance').clientWidth"
    )


def test_a_link_to_a_cell_opens_it(browser, html, tmp_path):
    (tmp_path / "report.html").write_text(html)
    browser.open(tmp_path / "report.html", "#cell-13.0")
    assert browser.evaluate(IS_OPEN)


def test_a_link_within_the_page_opens_a_cell_too(opened):
    opened.evaluate("location.hash = '#cell-13.0'")
    assert opened.evaluate(f"new Promise((done) => setTimeout(() => done({IS_OPEN}), 50))")


SHOWN = "[...document.querySelectorAll('#plot-{} .picture:not([hidden]) svg a')]"


def pick(browser: Browser, name: str, choice: int) -> None:
    """Choose one of a plot's pictures, as a reader does."""
    select = f"document.querySelector('#plot-{name} select')"
    changed = f"{select}.dispatchEvent(new Event('change', {{bubbles: true}}))"
    browser.evaluate(f"{select}.value = {choice}, {changed}")


def opened_after(browser: Browser) -> bool:
    """Whether a sheet is open a moment later."""
    return browser.evaluate(f"new Promise((done) => setTimeout(() => done({IS_OPEN}), 50))")


def test_plots_are_drawn_and_have_their_numbers_as_tables(cloned):
    for name in ("leads", "bits"):
        assert cloned.evaluate(f"{SHOWN.format(name)}.length") > 10
        assert cloned.evaluate(f"document.querySelectorAll('#plot-{name} .list tbody tr').length") >= 3
        assert cloned.evaluate(f"document.querySelector('#plot-{name} svg').getAttribute('aria-label')")
    assert cloned.evaluate("document.querySelector('#plot-seeds .empty').offsetHeight") > 0


@pytest.mark.parametrize(("name", "choice"), [("leads", 0), ("bits", 0)])
def test_a_click_on_a_point_opens_its_cell(cloned, name, choice):
    pick(cloned, name, choice)
    cloned.evaluate(f"{SHOWN.format(name)}.at(-1).id = 'last'")
    text = cloned.evaluate("document.querySelector('#last title').textContent")
    cloned.click("#last use")
    assert opened_after(cloned)
    title = cloned.evaluate("document.getElementById('provenance-title').textContent")
    assert title.startswith(text.partition(",")[0])
    assert re.search(r"\d+/\d+", text)[0] in title
    assert cloned.evaluate("location.hash").startswith("#cell-")


@pytest.mark.parametrize(("name", "choice", "column"), [("leads", 1, 0), ("bits", 0, 2)])
def test_the_keyboard_opens_the_cell_of_a_point_from_its_numbers(cloned, name, choice, column):
    pick(cloned, name, choice)
    picture = f"#plot-{name} .picture:not([hidden])"
    links = f"[...document.querySelectorAll('{picture} .list tbody a')]"
    if name == "leads":  # beside each number stands its bar
        assert cloned.evaluate(f"{links}.length == document.querySelectorAll('{picture} .strip').length")
    else:
        cloned.evaluate(f"document.querySelector('{picture} details').open = true")
        drawn = cloned.evaluate(f"{SHOWN.format(name)}.map((link) => link.href.baseVal)")
        assert set(cloned.evaluate(f"{links}.map((link) => link.hash)")) == set(drawn)
    cloned.evaluate(f"{links}[0].focus()")
    assert cloned.evaluate("document.activeElement.parentElement.cellIndex") == column
    cloned.press("Enter")
    assert opened_after(cloned)


def test_a_choice_shows_another_plot(cloned):
    links = "document.querySelectorAll('#plot-leads .picture:not([hidden]) a').length"
    before = cloned.evaluate(links)
    cloned.evaluate("document.querySelector('#plot-leads select').focus()")
    cloned.press("ArrowDown")
    select = "document.querySelector('#plot-leads select')"
    assert cloned.evaluate(f"{select}.selectedOptions[0].textContent") == "real 1"
    assert cloned.evaluate(links) == 6 < before


def test_the_errors_of_blocks_have_bars_in_the_sheet(opened):
    opened.click("[id='cell-3.24']")
    bars = "[...document.querySelectorAll('#provenance .bar')].map((cell) => cell.style.getPropertyValue('--share'))"
    assert opened.evaluate(bars) == ["100%", "100%"]


def test_plots_follow_the_theme(cloned):
    text = "getComputedStyle(document.querySelector('#plot-leads svg text')).fill"
    page = "getComputedStyle(document.body).color"
    light = cloned.evaluate(text)
    assert light == cloned.evaluate(page)
    cloned.dark()
    assert cloned.evaluate(text) == cloned.evaluate(page) != light
    assert cloned.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 24, 31)"


def choose(browser: Browser, name: str, value: str) -> None:
    """Choose a method, as a reader does."""
    list_ = f"document.querySelector('#compare select[name={name}]')"
    browser.evaluate(f"{list_}.value = {value!r}")
    browser.evaluate(f"{list_}.dispatchEvent(new Event('change', {{bubbles: true}}))")


PLACE = ("method", "section", "bits", "column", "metric")


def expected(clone: Path, one: str, other: str) -> list[list[str]]:
    """Return both values of each cell that two methods share, from the CSVs."""
    found: dict[tuple[str, ...], list[str]] = {}
    for number in range(1, 5):
        lines = list(csv.DictReader((clone.parent / f"results/reference/real{number}.csv").read_text().splitlines()))
        cells = {tuple(line[name] for name in PLACE): line for line in lines}
        for (method, *place), line in cells.items():
            if method == one and (rival := cells.get((other, *place))):
                run = (line["checkpoint"], line["metric"], line["recipe"], rival["recipe"])  # may be in several tables
                found.setdefault(run, [line["value"], rival["value"]])
    return list(found.values())


def test_two_methods_are_compared_and_the_address_says_which(cloned, clone):
    both = expected(clone, "B + AdaRound", "B + AdaQuant")
    choose(cloned, "one", "B + AdaRound")
    choose(cloned, "other", "B + AdaQuant")
    table = "[...document.querySelectorAll('#compare tbody tr')].map((row) => [...row.cells].map((c) => c.textContent))"
    rows = cloned.evaluate(table)
    assert [row[2:4] for row in rows] == both
    for row, (one, other) in zip(rows, both, strict=True):
        relative = row[4].endswith(" %")  # a perplexity
        better = 100 * (float(other) - float(one)) / float(other) if relative else float(one) - float(other)
        assert float(row[4].removesuffix(" %")) == pytest.approx(better, abs=0.0051)
    won = sum(float(row[4].removesuffix(" %")) > 0 for row in rows)
    sentence = cloned.evaluate("document.querySelector('#compare output').textContent")
    assert sentence.startswith(f"{len(both)} cells have both: B + AdaRound is better in {won}, B + AdaQuant in ")
    assert cloned.evaluate("document.querySelectorAll('#compare .bar').length") == len(both)
    fragment = cloned.evaluate("location.hash")
    cloned.open(clone, fragment)
    assert cloned.evaluate(table) == rows


def test_full_precision_stands_beside_all_bits(cloned):
    choose(cloned, "one", "Full-precision")
    choose(cloned, "other", "RTN")
    cells = "[...document.querySelectorAll('#compare tbody tr td:nth-child(2)')].map((cell) => cell.textContent)"
    assert {cell.split(", ")[-1] for cell in cloned.evaluate(cells)} >= {"4/32", "3/32", "2/32"}


def test_the_paper_can_be_compared_too(opened):
    choose(opened, "numbers", "published")
    values = "[...document.querySelectorAll('#compare tbody tr td:nth-child(3)')].map((cell) => cell.textContent)"
    printed = {f"{value:.2f}" for key, value in paper_numbers.load().items() if "FlexRound" in key.method}
    assert set(opened.evaluate(values)) <= printed
    assert "standard errors" not in opened.evaluate("document.querySelector('#compare output').textContent")


def test_a_compared_cell_opens_its_sheet(cloned):
    cloned.click("#compare tbody a")
    assert opened_after(cloned)


def test_print_opens_what_is_folded_and_fits_the_paper(cloned):
    folded = "[...document.querySelectorAll('main details table')].map((each) => each.checkVisibility())"
    seen = f"{folded}.filter((each) => each).length"
    assert cloned.evaluate(seen) == 0
    cloned.call("Emulation.setEmulatedMedia", media="print")
    assert cloned.evaluate(f"document.querySelectorAll('#claims details table').length <= {seen}")
    hidden = "[...document.querySelectorAll('nav, form, fieldset')].every((each) => !each.offsetHeight)"
    assert cloned.evaluate(hidden)
    cloned.call("Emulation.setEmulatedMedia", media="")
