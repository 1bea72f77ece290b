"""Sphinx: the Markdown pages of the whole repository as a site (`make docs`). A broken link is an error."""

import re
import sys
from pathlib import Path

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from pydantic import BaseModel
from sphinx.application import Sphinx

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
sys.path[:0] = [str(DOCS), str(ROOT / "src")]
import made  # noqa: E402

project = "FlexRound, reproduced"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
root_doc = "README"
include_patterns = [
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "bench/RESULTS.md",
    "config/README.md",
    "docs/**.md",
    "worlds/README.md",
]
html_theme = "furo"
html_title = project
html_static_path = ["static"]
html_extra_path = ["made/extra"]
html_css_files = ["site.css"]
html_copy_source = False
html_math_renderer = "mathml"
myst_heading_anchors = 3
myst_enable_extensions = ["dollarmath"]
autodoc_default_options = {"members": True, "show-inheritance": True, "exclude-members": "model_config"}
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
napoleon_use_ivar = True
# Names without a link: other packages (Sphinx reads no other site), type variables, private classes, functions instead
# of classes, and errors, which the reference leaves out.
nitpick_ignore_regex = [
    ("py:.*", r"(?!flexround\.).*"),
    ("py:class", r".*\.([A-Z]|[a-z_]\w*|RootModel\[.*)|flexround\.errors\..*"),
]

CONTENTS = """
```{toctree}
:hidden:
:caption: Begin

docs/quick-start
docs/one-number
docs/results
docs/made/tables
```

```{toctree}
:hidden:
:caption: Yours beside the paper's

docs/library
docs/own
docs/made/reference
```

```{toctree}
:hidden:
:caption: Run it

config/README
docs/made/hyper-parameters
docs/run-at-scale
docs/storage
docs/security
```

```{toctree}
:hidden:
:caption: Read more

docs/statistics
docs/determinism
docs/differences
docs/specification
docs/developers
worlds/README
bench/RESULTS
CONTRIBUTING
CHANGELOG
```
"""
MARKS = re.compile(r"``.+?``|`[^`]+`_*|\\.|[|*]")  # reStructuredText's marks, after the literals and links to keep
LINK = re.compile(r"(?<!!)\[(?!!)([^\]]+)\]\(([^):#]+)\)")  # not an image, nor a link around an image


def complete(app: Sphinx, name: str, source: list[str]) -> None:
    """Add the contents to the first page; reduce links to files and folders that aren't pages to their text."""
    folder = (ROOT / name).parent

    def page(link: re.Match[str]) -> str:
        target = folder / link[2]
        return link[1] if target.exists() and target.suffix != ".md" else link[0]

    source[0] = LINK.sub(page, source[0]) + (CONTENTS if name == root_doc else "")


def _as_text(text: str) -> str:
    """Return text with its marks escaped, except in literals."""
    return MARKS.sub(lambda mark: mark[0] if len(mark[0]) > 1 else f"\\{mark[0]}", text)


def take_as_text(app: Sphinx, what: str, name: str, of: object, options: object, lines: list[str]) -> None:
    """Show |x| and a * b in a docstring literally."""
    lines[:] = map(_as_text, lines)


def describe_fields(app: Sphinx, what: str, name: str, of: object, options: object, lines: list[str]) -> None:
    """Add the fields' descriptions to a class of settings."""
    if isinstance(of, type) and issubclass(of, BaseModel):
        described = {key: _as_text(field.description) for key, field in of.model_fields.items() if field.description}
        lines += ["", *(f":param {key}: {text}" for key, text in described.items()), ""]


def skip_field(app: Sphinx, what: str, name: str, of: object, skip: bool, options: object) -> bool | None:
    """Leave out the fields of named tuples, which Python describes only by number; the signature lists them."""
    return True if (getattr(of, "__doc__", None) or "").startswith("Alias for field number") else None


def show_formula(translator: nodes.NodeVisitor, node: nodes.math | nodes.math_block) -> None:
    """Write a formula as MathML, which browsers show without a script."""
    translator.body.append(tex2mathml(node.astext(), as_block=isinstance(node, nodes.math_block)))
    raise nodes.SkipNode


def setup(app: Sphinx) -> None:
    """Connect the functions above, and write the generated pages."""
    app.connect("source-read", complete)
    app.connect("autodoc-process-docstring", take_as_text, priority=400)  # before napoleon
    app.connect("autodoc-process-docstring", describe_fields)
    app.connect("autodoc-skip-member", skip_field)
    app.add_html_math_renderer("mathml", inline_renderers=(show_formula, None), block_renderers=(show_formula, None))
    made.write(DOCS / "made")
