"""Pages generated with the site: reports, hyper-parameters, and the reference from docstrings."""

import importlib
import pkgutil
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import flexround
from flexround.results import published_results
from flexround.results.render import markdown, report_page
from flexround.settings.layout import PARAMS, ROOT
from flexround.settings.load import load_params
from flexround.settings.plan import Plan
from flexround.settings.schema import Hyper

ARCHIVES = shutil.ignore_patterns("*.xz")
ROOMS = {
    "quant": "Grids, roundings, activation quantizers",
    "reconstruct": "Block-by-block optimisation",
    "models": "Blocks of each architecture, checkpoints, surgery before a network is quantized",
    "settings": "What params/ may say",
    "results": "From evaluated runs to what is read",
}


def write(directory: Path) -> None:
    """Write all generated pages into a directory of their own."""
    shutil.rmtree(directory, ignore_errors=True)
    (directory / "extra").mkdir(parents=True)
    for name, text in {**tables(directory / "extra"), **hyper_parameters(), **reference()}.items():
        path = directory / f"{name}.md"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def tables(directory: Path) -> dict[str, str]:
    """Write the report of each scale's published results, and return the page that lists the reports."""
    rows = []
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        (root / "results").mkdir()
        (root / "results/reference").symlink_to(ROOT / published_results.DIRECTORY)
        shutil.copytree(ROOT / published_results.DIRECTORY, directory / "reference", ignore=ARCHIVES)
        for path in sorted((PARAMS / "scales").glob("*.yaml")):
            plan = Plan(load_params(path.stem))
            files = (f"{table.name}.csv" for table in plan.params.tables.values())
            if any(published_results.find_published(root, plan.scale, name) for name in files):
                file = f"report-{path.stem}.html"
                (directory / file).write_text(report_page.render(root, plan))
                rows.append(
                    f'* <a href="../../{file}">Scale {path.stem}</a>: {markdown.escape(plan.scale.description)}'
                )
    about = "Reports of what this repository publishes: tables beside the paper's numbers, ranking, claims, plots."
    return {"tables": f"# Tables\n\n{about}\n\n" + "\n".join(rows) + "\n"}


def hyper_parameters() -> dict[str, str]:
    """Return the page of all hyper-parameters: key, values and meaning."""
    properties = Hyper.model_json_schema()["properties"]
    rows = [(f"`{key}`", _values(facts), facts["description"]) for key, facts in properties.items()]
    escaped = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    table = markdown.table(("key", "values", "meaning"), escaped, texts=3)
    which = "[Configuration](../../config/README.md#settings) says which rule wins."
    about = f"The keys of `hyper` rules, their values and their meaning. {which}"
    return {"hyper-parameters": f"# Every hyper-parameter\n\n{about}\n\n{table}\n"}


def _values(facts: dict[str, Any]) -> str:
    """Return the values that a JSON schema allows, in words."""
    if choices := facts.get("anyOf") or facts.get("oneOf"):
        return ", or ".join(map(_values, choices))
    if "additionalProperties" in facts:
        return f"for each group: {_values(facts['additionalProperties'])}"
    if values := facts.get("enum") or ([facts["const"]] if "const" in facts else []):
        return ", ".join(f"`{value}`" for value in values)
    if facts["type"] == "boolean":
        return "`true`, `false`"
    least = f"above {facts['exclusiveMinimum']:g}" if "exclusiveMinimum" in facts else f"from {facts['minimum']:g}"
    most = f"below {facts['exclusiveMaximum']:g}" if "exclusiveMaximum" in facts else f"to {facts['maximum']:g}"
    return f"{least} {most}"


def reference() -> dict[str, str]:
    """Return a page for the package's public names, a page for each room, and a page that lists them."""
    public = [f".. {_kind(name)}:: flexround.{name}" for name in flexround.PUBLIC]
    public += [f".. autoclass:: flexround.library.{name}" for name in ("card.Origin", "probe.Input")]  # of Quantized
    pages = {"reference/flexround": f"# flexround\n\n{_directives(public)}"}
    for room, about in ROOMS.items():
        pages[f"reference/{room}"] = f"# {room}\n\n{about}.\n\n" + "\n".join(map(_module, _modules(room)))
    about = "Made from docstrings. For a network or a rounding of your own, what is public in `flexround` is enough."
    return {"reference": f"# Reference\n\n{about}\n\n{_contents(pages)}", **pages}


def _kind(name: str) -> str:
    """Return the directive for a public name."""
    return "autoclass" if name[0].isupper() else "autofunction"


def _modules(room: str) -> list[str]:
    """Return the names of the modules in a room."""
    package = importlib.import_module(f"flexround.{room}")
    return [each.name for each in pkgutil.walk_packages(package.__path__, f"{package.__name__}.") if not each.ispkg]


def _module(name: str) -> str:
    """Return the section of a module."""
    return f"## {name}\n\n{_directives([f'.. automodule:: {name}'])}"


def _directives(lines: Iterable[str]) -> str:
    """Return reStructuredText directives embedded in Markdown."""
    return "```{eval-rst}\n" + "\n\n".join(lines) + "\n```\n"


def _contents(pages: Iterable[str]) -> str:
    """Return a list of pages."""
    return "```{toctree}\n" + "\n".join(pages) + "\n```\n"
