"""Read and validate ``params/``. No torch here: the Snakefile imports this."""

import contextlib
import os
import re
import sys
from pathlib import Path
from typing import Any

from flexround.errors import SettingsError, suggest
from flexround.settings import checks
from flexround.settings.layout import MODULES, PARAMS, REFERENCE, SOURCES
from flexround.settings.params import Params
from flexround.settings.schema import Defaults, Recipe, Recipes, Scale, Shows
from flexround.settings.sources import Sources, placed
from flexround.settings.tables import Budgets, ByBits, FigureSpecs, Table
from flexround.settings.validation import S, given, noted, read_yaml

OWN_SERIES = (
    "name them by letters that no file in params/tables begins with, without published numbers: "
    "shows: {tables: mine, published: false} makes results/mine1.csv and so on"
)


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
    they win. Its claims are about its tables: other tables have none of them.

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
    base = read_scale(str(content.pop("extends")), (*extending, path))
    return _laid_over(base, _following(base, content) if isinstance(base, dict) else content)


def _check_name(name: str, path: Path) -> None:
    """Check that the results of a scale have a directory of their own: two files can't have one name."""
    home = (PARAMS / "scales").resolve()
    known = path.resolve().parent == home or (home / f"{name}.yaml").exists()
    if f"results/{name}" in (SOURCES, REFERENCE) or (known and path.resolve() != home / f"{name}.yaml"):
        way = f"its results need a place of their own; write {path.stem}, or another that no file in {home} has"
        raise SettingsError(f"{path}: name = {name!r}: {way}")


def _following(base: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    """Return what a scale says that extends another: its rules after the other's, no claims if it has other tables.

    The other's description would be false of it.
    """
    change.setdefault("description", f"the scale {base.get('name')} with changes")
    rules = [key for key in checks.RULES if isinstance(base.get(key), list) and isinstance(change.get(key), list)]
    old, new = base.get("shows"), change.get("shows")
    if isinstance(old, dict) and isinstance(new, dict) and new.get("tables") not in (None, old.get("tables")):
        change |= {"shows": {"claims": None} | new}
    return change | {key: base[key] + change[key] for key in rules}


def _laid_over(base: Any, change: Any) -> Any:
    """Return ``base`` with ``change`` over it."""
    if isinstance(base, dict) and isinstance(change, dict):
        joined = {key: _laid_over(base.get(key), value) for key, value in change.items() if value is not None}
        return {key: value for key, value in base.items() if key not in change} | joined
    return change


def load_params(scale: str, every_run: bool = True) -> Params:
    """Read and validate everything a scale needs, and resolve the settings of every run.

    Args:
        scale: name of a file in ``params/scales/``, or path of a YAML file; the code that it names may lie beside it.
        every_run: whether the settings of all runs are resolved, which takes seconds and finds mistakes across files.

    Raises:
        SettingsError: all errors of all files together.
    """
    errors: list[str] = []

    def read(model: type[S], path: Path, own: dict[str, Any] | None = None, place: str = "") -> S | None:
        with noted(errors):
            return given(model, read_yaml(path) if own is None else own, f"{path}{place}")
        return None

    path, found = scale_path(scale), None
    if is_path(scale):
        import_beside(path)
    with noted(errors):
        found = given(Scale, read_scale(scale), str(path))
        _check_name(found.name, path)
    shows = found.shows if found else Shows.model_validate({})
    recipes, defaults = read(Recipes, PARAMS / "recipes.yaml"), read(Defaults, PARAMS / "defaults.yaml")
    figures, pinned = read(FigureSpecs, PARAMS / shows.figures), read(Sources, PARAMS / "sources.yaml")
    files = sorted((PARAMS / "tables").glob(f"{shows.tables}[0-9]*.yaml"))
    if found and found.tables:
        if shows.published or files:
            errors.append(f"{path}: tables: {OWN_SERIES}")
        tables = []
        for i, own_table in enumerate(found.tables):  # the place in the list is a part of the name
            named = {"series": shows.tables, "number": i + 1, "label": f"tab:{shows.tables}{i + 1}"}
            tables.append(read(Table, path, named | own_table, f": tables.{i}"))
    else:
        tables = [read(Table, file) for file in files]
    own = placed(found.sources, path.parent) if found else {}
    for name, source in own.items():
        if pinned and name in pinned.root:
            errors.append(f"{path}: sources.{name}: params/sources.yaml has that name")
        elif source.placed and not source.placed.exists():
            errors.append(f"{path}: sources.{name}: {source.placed} is missing")
    if errors or not (found and recipes and defaults and figures and pinned):
        raise SettingsError(_from_own_file(path, "\n".join(errors)))
    recipes.recipes.update(_of_budgets(recipes.recipes, figures))
    params = Params(found, recipes, defaults, pinned.root | own, {t.number: t for t in tables if t}, figures)
    _check_shown(params)
    if every_run:
        try:
            checks.check(params)
        except SettingsError as error:
            raise SettingsError(_from_own_file(path, str(error))) from error
    return params


def _of_budgets(recipes: dict[str, Recipe], figures: FigureSpecs) -> dict[str, Recipe]:
    """Return a recipe for each method and number of iterations of the figures of budgets; rules give its rate."""
    found = {}
    for figure in (figure for figure in figures.figures if isinstance(figure, Budgets)):
        for name in {name for panel in figure.panels for name in panel.recipes.values()} & recipes.keys():
            others = {key: value for key, value in recipes[name].hyper.items() if key != "lr"}
            for count in figure.iterations:
                change = {"hyper": others | {"iters": count}}
                found[figure.recipe(name, count)] = recipes[name].model_copy(update=change)
    return found


def _from_own_file(path: Path, text: str) -> str:
    """Return the lines of an error with the places of a scale's rules counted from its own file, not its parents'."""
    counts = dict[str, int]()
    with contextlib.suppress(SettingsError):  # which the text has
        content = read_yaml(path) or {}
        base = read_scale(content["extends"], (path,)) if "extends" in content else {}
        counts = {key: len(base.get(key) or []) for key in checks.RULES if content.get(key)}

    def counted(found: re.Match[str]) -> str:
        number = int(found[2]) - counts.get(found[1], 0)
        return f"{found[1]}.{number}" if number >= 0 else found[0]

    rule = re.compile(rf"\b({'|'.join(checks.RULES)})\.(\d+)\b")
    lines = text.splitlines()
    return "\n".join(line if line.startswith("params/defaults") else rule.sub(counted, line) for line in lines)


def _check_shown(params: Params) -> None:
    """Check that there are tables, and the one that a figure shows by its bits."""
    shows, where = params.scale.shows, f"scale {params.scale.name}: shows"
    if not params.tables:
        series = {path.stem.rstrip("0123456789") for path in (PARAMS / "tables").glob("*.yaml")}
        raise SettingsError(f"{where}.tables: no params/tables has {suggest(shows.tables, series)}")
    for figure in params.figures.figures:
        if isinstance(figure, ByBits) and figure.table not in params.tables:
            raise SettingsError(
                f"{where}: figure {figure.number} of params/{shows.figures} shows table {figure.table}, which series "
                f"{shows.tables!r} lacks; it has {', '.join(map(str, sorted(params.tables)))}"
            )
