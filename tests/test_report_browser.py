"""The report in a browser: no complaints, sorting, filtering, plots, sheets by mouse and keyboard."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from report_case import PLAN, fill_root, published
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.wait import WebDriverWait

from flexround.results.render import report_page

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), None)
DRIVER = shutil.which("chromedriver")  # neither a driver nor anything of a page is downloaded
pytestmark = pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="Chromium or its chromedriver is not installed")
OPENED = "[...document.querySelectorAll('#sheets details[open] summary')].map((e) => e.textContent)"
OPEN_SOON = f"new Promise((done) => setTimeout(() => done({OPENED}), 50))"


class Browser(webdriver.Chrome):
    """One tab; a request to any host fails, and is among its complaints."""

    def __init__(self, profile: Path) -> None:
        options = webdriver.ChromeOptions()
        options.binary_location = str(CHROMIUM)
        for each in ("headless=new", "no-sandbox", "host-resolver-rules=MAP * ~NOTFOUND", f"user-data-dir={profile}"):
            options.add_argument(f"--{each}")
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        super().__init__(options, webdriver.ChromeService(executable_path=DRIVER))

    def complaints(self) -> list[str]:
        """Return the errors and warnings of the console since the last call, those of failed requests too."""
        return [entry["message"] for entry in self.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]

    def open(self, page: Path, fragment: str = "") -> None:
        """Load a page anew, until its scripts have run: a busy machine's driver may return before."""
        address = page.resolve().as_uri() + fragment
        self.get("about:blank")
        self.get(address)
        loaded = f"location.href === {address!r} && document.readyState === 'complete'"
        WebDriverWait(self, 30).until(lambda _: self.evaluate(loaded))

    def evaluate(self, expression: str) -> Any:
        """Return the value of a JavaScript expression, or what a promise holds in the end."""
        return self.execute_script(f"return {expression}")

    def click(self, selector: str) -> None:
        """Click into the middle of an element, as a mouse does."""
        self.evaluate(f"document.querySelector({selector!r}).scrollIntoView({{block: 'center', inline: 'center'}})")
        webdriver.ActionChains(self).click(self.find_element(By.CSS_SELECTOR, selector)).perform()

    def press(self, key: str) -> None:
        """Press a key, as a keyboard does."""
        webdriver.ActionChains(self).send_keys(key).perform()

    def resize(self, width: int, height: int = 900) -> None:
        """Give the page another size."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)

    def media(self, kind: str = "", scheme: str = "light") -> None:
        """Show the page as on screen or on paper (``print``), in light or dark colours."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": kind, "features": features})


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with Browser(tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.fixture(scope="module")
def made_up(tmp_path_factory) -> Path:
    """The report of a project in which two tables are made."""
    root = tmp_path_factory.mktemp("work")
    fill_root(root)
    (root / "report.html").write_text(report_page.render(root, PLAN))
    return root / "report.html"


@pytest.fixture(scope="module")
def clone(tmp_path_factory) -> Path:
    """The report of a project without results, at a scale with many methods."""
    page = tmp_path_factory.mktemp("clone") / "report.html"
    page.write_text(published("real"))
    return page


@pytest.fixture
def opened(browser, made_up):
    yield from without_complaints(browser, made_up)


@pytest.fixture
def cloned(browser, clone):
    yield from without_complaints(browser, clone)


def without_complaints(browser: Browser, page: Path):
    """Yield a browser that shows a page; errors in its console, and any request, fail the test."""
    browser.complaints()
    browser.resize(1280)
    browser.media()
    browser.open(page)
    yield browser
    assert browser.complaints() == []


def each(selector: str, value: str) -> str:
    """Return an expression: ``value`` of each node that a selector finds, called ``e`` there."""
    return f"[...document.querySelectorAll({selector!r})].map((e) => {value})"


def test_a_heading_sorts_up_down_and_back(opened):
    column = each('#table3 tbody tr [data-column="0"]', "e.dataset.value")
    order = opened.evaluate(column)
    heading = "#table3 th[data-column='0'] .sort"
    opened.click(heading)
    assert opened.evaluate(column) == sorted(order, key=float) != order
    assert opened.evaluate("document.querySelector('#table3 th[data-column=\"0\"]').ariaSort") == "ascending"
    opened.press(Keys.ENTER)
    assert opened.evaluate(column) == sorted(order, key=float, reverse=True)
    opened.click(heading)
    assert opened.evaluate(column) == order
    assert opened.evaluate("document.querySelectorAll('#table3 tbody')[1].rows.length") == 4


def test_a_listing_sorts_by_the_numbers_that_it_shows(cloned):
    column = each("#claims details:first-of-type tbody td:nth-child(7)", "e.textContent")
    numbers = sorted(map(float, cloned.evaluate(column)))
    cloned.evaluate("document.querySelector('#claims details').open = true")
    cloned.click("#claims details[open] th:nth-child(7) .sort")
    assert list(map(float, cloned.evaluate(column))) == numbers


def test_a_cell_opens_the_sheet_of_its_run_also_by_keyboard(opened):
    opened.press(Keys.TAB)
    opened.evaluate("document.querySelector('[id=\"cell-3.24\"]').focus()")
    assert opened.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    opened.press(Keys.ENTER)
    assert opened.evaluate(OPEN_SOON) == ["imagenet/resnet18-brecq/q-flexround-w4a4"]
    text = opened.evaluate("document.querySelector('#sheets details[open]').innerText")
    assert "Table 3: Q + FlexRound (Ours), 4/4, ResNet-18, top-1" in text
    assert "learning rate\tlr\tv: 0.1, s1: 2\tsection 9" in text
    opened.evaluate("(document.querySelector('#sheets details[open]').open = false)")
    opened.click("[id='cell-3.24']")
    assert len(opened.evaluate(OPEN_SOON)) == 1


def test_a_family_is_filtered(opened):
    pick(opened, "#filter select", "SQuAD")
    visible = each("#status tbody tr, section[data-family]", "e.offsetParent && (e.id || e.cells[0].textContent)")
    assert list(filter(None, opened.evaluate(visible))) == ["Table 12", "Table 13", "table13"]
    assert opened.evaluate("document.querySelector('#filter output').textContent") == "2 tables shown"


@pytest.mark.parametrize("page", ["opened", "cloned"])
def test_no_page_or_sheet_scrolls_sideways_not_on_a_phone_either(page, request):
    shown = request.getfixturevalue(page)
    sides = "(({left, right}) => [left, right])(document.querySelector('#status tbody .badge').getBoundingClientRect())"
    edges = each(".values tbody tr:first-child th + td .cell", "e.getBoundingClientRect().right")
    for width in (360, 390, 1280):
        shown.resize(width)
        assert width != 390 or max(shown.evaluate(edges)) <= 390
        shown.evaluate(each("details", "e.open = true"))
        assert shown.evaluate("document.documentElement.scrollWidth") <= width
        left, right = shown.evaluate(sides)
        end = shown.evaluate("document.querySelector('#status .scroll').getBoundingClientRect().right")
        assert 0 < left < right <= end


def test_an_address_opens_a_sheet(opened, made_up):
    opened.evaluate("location.hash = '#sheet-3'")
    assert len(opened.evaluate(OPEN_SOON)) == 1
    opened.open(made_up, "#sheet-4")
    assert len(opened.evaluate(OPEN_SOON)) == 1


def pick(browser: Browser, selector: str, value: str) -> None:
    """Choose from a list, as a reader does."""
    list_ = f"document.querySelector({selector!r})"
    browser.evaluate(f"({list_}.value = {value!r}, {list_}.dispatchEvent(new Event('change', {{bubbles: true}})))")


def test_a_choice_shows_another_plot_and_plots_follow_the_theme(cloned):
    text = "getComputedStyle(document.querySelector('#plot-leads svg text')).fill"
    page = "getComputedStyle(document.body).color"
    light = cloned.evaluate(text)
    assert light == cloned.evaluate(page)
    cloned.media(scheme="dark")
    assert cloned.evaluate(text) == cloned.evaluate(page) != light
    shown = "document.querySelector('#plot-bits .picture:not([hidden]) svg').getAttribute('aria-label')"
    before = cloned.evaluate(shown)
    cloned.evaluate("document.querySelector('#plot-bits select').focus()")
    cloned.press(Keys.ARROW_DOWN)
    label = cloned.evaluate("document.querySelector('#plot-bits select').selectedOptions[0].textContent")
    assert cloned.evaluate(shown).endswith(f", {label}")
    assert cloned.evaluate(shown) != before


def test_print_opens_what_is_folded_and_hides_what_is_pressed(cloned):
    folded = each("#claims details table, #plot-leads details table", "e.checkVisibility()")
    assert not any(cloned.evaluate(folded))
    cloned.media("print")
    assert all(cloned.evaluate(folded))
    assert not any(cloned.evaluate(each("nav, #sheets, #filter", "e.offsetHeight")))
