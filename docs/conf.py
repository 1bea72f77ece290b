"""Sphinx: the Markdown pages of the whole repository as a site (`make docs`). A link that leads nowhere is an error."""

import re
from pathlib import Path

from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parent.parent
project = "FlexRound, reproduced"
extensions = ["myst_parser"]
root_doc = "README"
include_patterns = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "bench/RESULTS.md", "docs/*.md"]
html_theme = "alabaster"
html_theme_options = {
    "description": "Every table of the paper, from pinned inputs",
    "page_width": "75rem",
    "show_powered_by": False,
}
html_sidebars = {"**": ["about.html", "searchfield.html", "navigation.html"]}
html_copy_source = False
myst_heading_anchors = 3

CONTENTS = """
```{toctree}
:hidden:
:glob:

docs/quick-start
docs/library
docs/own-rounding
docs/own-model
docs/paper-scale
docs/rehearsal
docs/footguns
docs/*
CONTRIBUTING
bench/RESULTS
CHANGELOG
```
"""
LINK = re.compile(r"\[([^\]]+)\]\(([^):#]+)\)")


def complete(app: Sphinx, name: str, source: list[str]) -> None:
    """Add the contents to the first page, and leave the text alone of links to files and folders that aren't pages."""
    folder = (ROOT / name).parent

    def page(link: re.Match[str]) -> str:
        target = folder / link[2]
        return link[1] if target.exists() and target.suffix != ".md" else link[0]

    source[0] = LINK.sub(page, source[0]) + (CONTENTS if name == root_doc else "")


def setup(app: Sphinx) -> None:
    """Connect ``complete``."""
    app.connect("source-read", complete)
