"""Headless Chromium for the tests of the report, driven by selenium; no driver and nothing of a page is downloaded."""

import shutil
import time
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), None)
DRIVER = shutil.which("chromedriver")
KEYS = {"Enter": Keys.ENTER, "Escape": Keys.ESCAPE, "Tab": Keys.TAB}
KEYS |= {"ArrowRight": Keys.ARROW_RIGHT, "ArrowDown": Keys.ARROW_DOWN}


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

    def open(self, page: Path, fragment: str = "") -> float:
        """Load a page and return the seconds until it was loaded."""
        start = time.monotonic()
        self.get("about:blank")
        self.get(page.resolve().as_uri() + fragment)
        return time.monotonic() - start

    def evaluate(self, expression: str) -> Any:
        """Return the value of a JavaScript expression, or what a promise holds in the end."""
        return self.execute_script(f"return {expression}")

    def click(self, selector: str) -> None:
        """Click into the middle of an element, as a mouse does."""
        self.evaluate(f"document.querySelector({selector!r}).scrollIntoView({{block: 'center', inline: 'center'}})")
        webdriver.ActionChains(self).click(self.find_element(By.CSS_SELECTOR, selector)).perform()

    def press(self, key: str) -> None:
        """Press a key, as a keyboard does."""
        webdriver.ActionChains(self).send_keys(KEYS[key]).perform()

    def resize(self, width: int, height: int = 900) -> None:
        """Give the page another size."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)

    def media(self, kind: str = "", scheme: str = "light") -> None:
        """Show the page as on screen or on paper (``print``), in light or dark colours."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": kind, "features": features})
