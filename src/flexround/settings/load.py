"""Read and validate ``params/``. No torch here: the Snakefile imports this."""

import functools
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from flexround.errors import SettingsError, suggest
from flexround.settings import checks
from flexround.settings.layout import PARAMS, REFERENCE, SOURCES
from flexround.settings.params import Params
from flexround.settings.schema import Defaults, Recipes, Scale, Shows
from flexround.settings.sources import Placed, Sources
from flexround.settings.tables import FigureSpecs, Table
from flexround.settings.validation import S, attempt, given, noted, read_yaml

OWN_SERIES = (
    "name them by letters that no file in params/tables begins with, without published numbers: "
    "shows: {tables: mine, published: false} makes results/mine1.csv and so on"
)
MODULES = "FLEXROUND_MODULES"  # environment variable with the directories of the user's modules: they may be moved


def is_path(scale: str) -> bool:
    """Whether a scale is given as the path of a YAML file, not by its name."""
    return scale.endswith((".yaml", ".yml"))


def import_beside(file: Path) -> None:
    """Let this process, and the jobs that it starts, import the modules that lie beside a file of the user's."""
    directory = str(file.resolve().parent)
    if directory not in sys.path:
        sys.path.append(directory)
        os.environ[MODULES] = os.pathsep.join(filter(None, (os.environ.get(MODULES), directory)))


def scale_path(name: str) -> Path:
    """Return the file of a scale, given its name or a path to a YAML file.

    Raises:
        SettingsError: no such scale.
    """
    if is_path(name):
        return Path(name)
    known = {file.stem: file for file in (PARAMS / "scales").glob("*.yaml")}
    if name not in known:
        raise SettingsError(f"scale {suggest(name[:60], known)}, or give a path that ends in .yaml")
    return known[name]


def read_scale(name: str, extending: tuple[Path, ...] = ()) -> Any:
    """Read a scale; what it says is laid over the scale that it ``extends``, if it does.

    Mappings are joined key by key, a key given as null is left out, and rules follow those of the other scale, so that
    they win.

    Args:
        name: of a scale, or a path; relative to the file that extends it.
        extending: the files that led here.

    Raises:
        SettingsError: a missing file, a syntax error, or scales that extend each other in a circle.
    """
    beside = bool(extending) and is_path(name)
    path = Path(os.path.normpath(extending[-1].parent / name if beside else scale_path(name)))
    if path in extending:
        raise SettingsError(f"{path}: extends: {' -> '.join(map(str, (*extending, path)))} is a circle")
    content = read_yaml(path)
    if not isinstance(content, dict) or "extends" not in content:
        return content
    return _laid_over(read_scale(str(content.pop("extends")), (*extending, path)), content)


def _check_name(name: str, path: Path) -> None:
    """Check that the results of a scale have a directory of their own: two files can't have one name."""
    home, path = (PARAMS / "scales").resolve(), path.resolve()
    known = path.parent == home or (home / f"{name}.yaml").exists()
    if f"results/{name}" in (SOURCES, REFERENCE) or (known and path != home / f"{name}.yaml"):
        way = f"its results need a place of their own; write {path.stem}, or another that no file in {home} has"
        raise SettingsError(f"name = {name!r}: {way}")


def _laid_over(base: Any, change: Any) -> Any:
    """Return ``base`` with ``change`` over it."""
    if isinstance(base, dict) and isinstance(change, dict):
        joined = {key: _laid_over(base.get(key), value) for key, value in change.items() if value is not None}
        return {key: value for key, value in base.items() if key not in change} | joined
    if isinstance(base, list) and isinstance(change, list) and all(isinstance(rule, dict) for rule in change):
        return base + change
    return change


def load_params(scale: str) -> Params:
    """Read and validate everything a scale needs, and resolve the settings of every run.

    Args:
        scale: name of a file in ``params/scales/``, or path of a YAML file; the code that it names may lie beside it.

    Raises:
        SettingsError: all errors of all files together.
    """
    errors: list[str] = []

    def read(model: type[S], path: Path, reader: Callable[[Path], Any] = read_yaml) -> S | None:
        with noted(errors):
            return given(model, reader(path), str(path))
        return None

    path = scale_path(scale)
    if is_path(scale):
        import_beside(path)
    content: Any = None
    with noted(errors):
        content = read_scale(scale)
    own = content.pop("tables", []) if isinstance(content, dict) else []
    if not isinstance(own, list):
        errors.append(f"{path}: tables: write a list, an item for each table")
        own = []
    given_sources = content.pop("sources", {}) if isinstance(content, dict) else {}
    placed = Placed({})
    with noted(errors):
        placed = given(Placed, given_sources, f"{path}: sources")
    found = read(Scale, path, lambda _: content) if content is not None else None
    if found:
        errors += attempt(f"{path}: ", _check_name, found.name, path)
    recipes = read(Recipes, PARAMS / "recipes.yaml")
    defaults = read(Defaults, PARAMS / "defaults.yaml")
    shows = found.shows if found else Shows.model_validate({})
    described = _described(own, shows, path)
    tables = [read(Table, file, reader) for file, reader in described]
    if own and (shows.published or list((PARAMS / "tables").glob(f"{shows.tables}[0-9]*.yaml"))):
        errors.append(f"{path}: tables: {OWN_SERIES}")
    figures = read(FigureSpecs, PARAMS / shows.figures)
    sources = read(Sources, PARAMS / "sources.yaml")
    if sources:
        errors += _wrong_places(placed, sources, path)
    if errors or not (found and recipes and defaults and figures and sources):
        raise SettingsError("\n".join(errors))
    known = sources.root | placed.sources(path.parent)
    params = Params(found, recipes, defaults, known, {t.number: t for t in tables if t}, figures)
    _check_shown(params)
    checks.check(params)
    return params


def _wrong_places(placed: Placed, sources: Sources, path: Path) -> list[str]:
    """Return a line for each file or folder of a scale's own that is not there, or whose name is taken."""
    there = placed.sources(path.parent)
    taken = [f"{path}: sources.{name}: params/sources.yaml has that name" for name in there if name in sources.root]
    missing = [name for name, source in there.items() if source.placed and not source.placed.exists()]
    return taken + [f"{path}: sources.{name}: {there[name].placed} is missing" for name in missing]


def _described(own: Sequence[Any], shows: Shows, path: Path) -> list[tuple[Path, Callable[[Path], Any]]]:
    """Return where each table is described, and what reads it there: in the scale's own file, or in params/tables."""
    if not own:
        return [(file, read_yaml) for file in sorted((PARAMS / "tables").glob(f"{shows.tables}[0-9]*.yaml"))]

    def numbered(number: int, table: Any, _: Path) -> Any:
        place = {"series": shows.tables, "number": number, "label": f"tab:{shows.tables}{number}"}
        return place | table if isinstance(table, dict) else table

    return [(path, functools.partial(numbered, number, table)) for number, table in enumerate(own, 1)]


def _check_shown(params: Params) -> None:
    """Check that there are tables, and the one that a figure shows by its bits."""
    shows, where = params.scale.shows, f"scale {params.scale.name}: shows"
    if not params.tables:
        series = {path.stem.rstrip("0123456789") for path in (PARAMS / "tables").glob("*.yaml")}
        raise SettingsError(f"{where}.tables: no params/tables has {suggest(shows.tables, series)}")
    if (spec := params.figures.by_bits) and spec.table not in params.tables:
        raise SettingsError(
            f"{where}: figure {spec.number} of params/{shows.figures} shows table {spec.table}, which series "
            f"{shows.tables!r} lacks; it has {', '.join(map(str, sorted(params.tables)))}"
        )
