"""Read and validate ``params/``. This module imports no torch, because the Snakefile imports it."""

import itertools
import os
import sys
from pathlib import Path
from typing import Any

from flexround.errors import SettingsError, suggest
from flexround.settings import options
from flexround.settings.layout import MODULES, PARAMS, REFERENCE, SOURCES
from flexround.settings.params import Params
from flexround.settings.schema import Defaults, Recipe, Recipes, Scale
from flexround.settings.sources import Sources, placed
from flexround.settings.tables import Budgets, FigureSpecs, Table
from flexround.settings.validation import given, load, noted, read_yaml

RULES = ("hyper", "train", "gates", "trials", "needs")  # keys of a scale that hold rules


def is_path(scale: str) -> bool:
    """Whether ``scale`` is the path of a YAML file, not a name."""
    return scale.endswith((".yaml", ".yml"))


def import_beside(file: Path) -> None:
    """Let this process and its jobs import the modules in the directory of a user's file."""
    directory = str(file.resolve().parent)
    if directory not in sys.path:
        sys.path.append(directory)
        os.environ[MODULES] = os.pathsep.join(filter(None, (os.environ.get(MODULES), directory)))


def scale_path(name: str) -> Path:
    """Return a scale's file, given its name or the path of a YAML file.

    Raises:
        SettingsError: no such scale.
    """
    if is_path(name):
        return Path(name)
    known = {file.stem: file for file in (PARAMS / "scales").glob("*.yaml")}
    if name not in known:
        raise SettingsError(f"scale {suggest(name[:60], known)}, or give a path that ends in .yaml")
    return known[name]


def load_scale(path: Path) -> Scale:
    """Read a scale, and merge it into the base scale that it ``extends``, if any.

    Mappings are merged key by key, and a null value removes its key. The scale's rules follow the base scale's rules
    and so take precedence. A scale with other tables than its base inherits no claims.

    Raises:
        SettingsError: all errors of the first wrong file; rule numbers count within this file.
    """
    content = read_yaml(path)
    if not isinstance(content, dict) or "extends" not in content:
        return given(Scale, content, str(path))
    name = str(content.pop("extends"))
    base = load_scale(path.parent / name if is_path(name) else scale_path(name))
    scale = given(Scale, laid_over(_inherited(base, content.get("shows")), content), str(path))
    kept = (key for key in RULES if content.get(key, ()) is not None)
    return scale.model_copy(update={key: getattr(base, key) + getattr(scale, key) for key in kept})


def _inherited(base: Scale, shows: Any) -> dict[str, Any]:
    """Return the keys that a scale inherits from ``base``, given its own ``shows``."""
    kept = base.model_dump(mode="json", exclude_unset=True, exclude=set(RULES))
    if isinstance(shows, dict) and shows.get("tables", base.shows.tables) != base.shows.tables:
        kept["shows"] = kept.get("shows", {}) | {"claims": None}
    return kept | {"description": f"the scale {base.name} with changes"}


def laid_over(base: Any, change: Any) -> Any:
    """Return ``base`` updated by ``change``, recursively."""
    if isinstance(base, dict) and isinstance(change, dict):
        joined = {key: laid_over(base.get(key), value) for key, value in change.items() if value is not None}
        return {key: value for key, value in base.items() if key not in change} | joined
    return change


def _check_name(name: str, path: Path) -> None:
    """Check that a scale's results have their own directory: no two files may share a name."""
    home = (PARAMS / "scales").resolve()
    known = path.resolve().parent == home or (home / f"{name}.yaml").exists()
    if f"results/{name}" in (SOURCES, REFERENCE) or (known and path.resolve() != home / f"{name}.yaml"):
        way = f"its results need a place of their own; write {path.stem}, or another that no file in {home} has"
        raise SettingsError(f"{path}: name = {name!r}: {way}")


def load_params(scale: str) -> Params:
    """Read and validate all settings of a scale; ``flexround check`` finds mistakes across files.

    Args:
        scale: name of a file in ``params/scales/``, or path of a YAML file; its own code may be in its directory.

    Raises:
        SettingsError: all errors of the first wrong file.
    """
    path = scale_path(scale)
    if is_path(scale):
        import_beside(path)
    found = load_scale(path)
    _check_name(found.name, path)
    errors = list[str]()
    for name, task in found.tasks.items():
        with noted(errors, f"{path}: tasks.{name}: "):
            given(options.of(task.module).options, task.options, "options")
    tables = _own_tables(found, path, errors) if found.tables else _tables(found)
    if errors:
        raise SettingsError("\n".join(errors))
    recipes, figures = load(Recipes, PARAMS / "recipes.yaml"), load(FigureSpecs, PARAMS / found.shows.figures)
    recipes.recipes.update(_of_budgets(recipes.recipes, figures))
    sources = load(Sources, PARAMS / "sources.yaml").root | placed(found.sources, path.parent)
    defaults = load(Defaults, PARAMS / "defaults.yaml")
    return Params(found, recipes, defaults, sources, {table.number: table for table in tables}, figures)


def _tables(scale: Scale) -> list[Table]:
    """Read the tables in ``params/tables`` that a scale shows."""
    files = sorted((PARAMS / "tables").glob(f"{scale.shows.tables}[0-9]*.yaml"))
    if not files:
        series = {path.stem.rstrip("0123456789") for path in (PARAMS / "tables").glob("*.yaml")}
        raise SettingsError(f"scale {scale.name}: shows.tables: {suggest(scale.shows.tables, series)}")
    return [load(Table, file) for file in files]


def _own_tables(scale: Scale, path: Path, errors: list[str]) -> list[Table]:
    """Return the tables that a scale's file describes; a table's position in the list is part of its name."""
    series, found = scale.shows.tables, list[Table]()
    if scale.shows.published or [*(PARAMS / "tables").glob(f"{series}[0-9]*.yaml")]:
        way = "name them by letters that no file in params/tables begins with, without published numbers"
        errors.append(f"{path}: tables: {way}: shows: {{tables: mine, published: false}}")
    for number, own in enumerate(scale.tables, start=1):
        with noted(errors):
            named = {"series": series, "number": number, "label": f"tab:{series}{number}"}
            found.append(given(Table, named | own, f"{path}: tables.{number - 1}"))
    return found


def _of_budgets(recipes: dict[str, Recipe], figures: FigureSpecs) -> dict[str, Recipe]:
    """Return a recipe per method and iteration count of the budget figures; rules set its learning rate."""
    found = {}
    for figure in (figure for figure in figures.figures if isinstance(figure, Budgets)):
        for panel in figure.panels:
            for name, count in itertools.product(panel.recipes.values(), panel.iterations):
                others = {key: value for key, value in recipes[name].hyper.items() if key != "lr"}
                change = {"hyper": others | {"iters": count}}
                found[figure.recipe(name, count)] = recipes[name].model_copy(update=change)
    return found
