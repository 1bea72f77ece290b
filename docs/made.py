"""Pages that are made when the site is built: tables, ranking, hyper-parameters, and the reference from docstrings."""

import importlib
import pkgutil
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import flexround
from flexround.results import frames, paper_numbers, published_results, ranking
from flexround.results.render import markdown, table_page, words
from flexround.settings.layout import PARAMS, ROOT
from flexround.settings.load import load_params
from flexround.settings.params import Params
from flexround.settings.plan import Plan
from flexround.settings.schema import Hyper

ROOMS = {
    "quant": "Grids, roundings, activation quantizers",
    "reconstruct": "Block-by-block optimisation",
    "models": "Blocks of each architecture, checkpoints, surgery before a network is quantized",
    "settings": "What params/ may say",
    "results": "From evaluated runs to what is read",
}


def write(directory: Path) -> None:
    """Write all made pages into a directory of their own."""
    shutil.rmtree(directory, ignore_errors=True)
    for name, text in {**tables(), **ranked(), **hyper_parameters(), **reference()}.items():
        path = directory / f"{name}.md"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def tables() -> dict[str, str]:
    """Return a page for each table, the paper's first, and one that lists them."""
    scales: dict[str, dict[int, list[Params]]] = {"table": {}}
    for path in sorted((PARAMS / "scales").glob("*.yaml")):
        params = load_params(path.stem)
        for number in Plan(params).complete_tables():
            scales.setdefault(params.scale.shows.tables, {}).setdefault(number, []).append(params)
    bold = paper_numbers.load_bold()
    pages = {
        f"tables/{series}{number}": table_page.page(number, made_at, bold, ROOT)
        for series, of_series in scales.items()
        for number, made_at in sorted(of_series.items())
    }
    about = "For each the paper's numbers, those that this repository publishes, and how the paper's claims fare."
    return {"tables": f"# Tables\n\n{about}\n\n{_contents(pages)}", **pages}


def ranked() -> dict[str, str]:
    """Return the page that ranks the roundings, over the tables of each scale whose ranking is published."""
    parts = ["# Which rounding is best?\n\n[How cells are counted](../trust.md#which-method-is-best)."]
    header = ["cells", "method", "unbeaten, %", "number", "leads", "shares", "loses", "left out"]
    for path in sorted((PARAMS / "scales").glob("*.yaml")):
        scale = load_params(path.stem).scale
        file = published_results.DIRECTORY / published_results.published_name(scale, "ranking.csv")
        lines = [line for line in frames.load(ROOT / file, ranking.Line) if line.scale == scale.name]
        rows = [[line.group, markdown.escape(line.method), *map(str, line[3:-1])] for line in lines]
        if rows:
            parts.append(
                f"## Scale {scale.name}\n\n{words.scale_note(scale)}\n\n{markdown.table(header, rows, texts=2)}"
            )
    return {"ranking": "\n\n".join(parts) + "\n"}


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
    """Return a page for what is public in the package, one for each room, and one that lists them."""
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
    """Return the names of a room's modules."""
    package = importlib.import_module(f"flexround.{room}")
    return [each.name for each in pkgutil.walk_packages(package.__path__, f"{package.__name__}.") if not each.ispkg]


def _module(name: str) -> str:
    """Return the section of a module."""
    return f"## {name}\n\n{_directives([f'.. automodule:: {name}'])}"


def _directives(lines: Iterable[str]) -> str:
    """Return reStructuredText inside Markdown."""
    return "```{eval-rst}\n" + "\n\n".join(lines) + "\n```\n"


def _contents(pages: Iterable[str]) -> str:
    """Return a list of pages."""
    return "```{toctree}\n" + "\n".join(pages) + "\n```\n"
