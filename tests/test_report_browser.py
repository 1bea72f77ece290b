"""The report in a browser: no complaints, sorting, filtering, and provenance by mouse and by keyboard."""

import pytest
from browser import CHROMIUM, Browser
from report_case import PLAN, fill_root

from flexround.results.render import report_page

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


@pytest.fixture
def opened(browser, html, tmp_path):
    (tmp_path / "report.html").write_text(html)
    browser.errors.clear()
    browser.resize(1280)
    browser.open(tmp_path / "report.html")
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
    assert "Table 3: Q + FlexRound (Ours), 4/4, ResNet-18, top1" in text
    assert "section 9" in text
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
    assert opened.evaluate(f"{visible}.map(e => e.id || e.cells[0].dataset.value)") == ["12", "13", "table13"]
    assert opened.evaluate("document.querySelector('#filter output').textContent") == "2 tables shown"


@pytest.mark.parametrize("width", [375, 1280])
def test_the_page_never_scrolls_sideways(opened, width):
    opened.resize(width)
    assert opened.evaluate("document.documentElement.scrollWidth") <= width
    opened.evaluate("document.getElementById('cell-3.24').click()")
    assert opened.evaluate("document.getElementById('provenance').scrollWidth") <= opened.evaluate(
        "document.getElementById('provenance').clientWidth"
    )


def test_a_link_to_a_cell_opens_it(browser, html, tmp_path):
    (tmp_path / "report.html").write_text(html)
    browser.open(tmp_path / "report.html", "#cell-13.0")
    assert browser.evaluate(IS_OPEN)
