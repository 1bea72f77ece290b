"""The user's own recipes, and their rows in the paper's tables, from one YAML file outside the project."""

import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from flexround.errors import SettingsError, look_up
from flexround.io.artifacts import write_text
from flexround.settings import layout
from flexround.settings.layout import Run
from flexround.settings.load import import_beside, is_path, load_params
from flexround.settings.params import Params, hyper
from flexround.settings.schema import Count, HyperRule, Name, Recipe, Strict
from flexround.settings.tables import Row, RowGroup, Table
from flexround.settings.validation import given, noted, read_yaml, validate


class OwnRow(Row):
    """A row that the user adds at the end of one of the paper's tables. It has no published numbers."""

    table: Count


class OwnRounding(Strict):
    """A user's rounding that gets a recipe and a row for each recipe and row of the project's rounding ``like``."""

    rounding: str
    like: str
    options: dict[str, Any] = {}
    hyper: tuple[HyperRule, ...] = ()


class Own(Strict):
    """The user's file."""

    roundings: dict[Name, OwnRounding] = {}
    recipes: dict[Name, Recipe] = {}
    rows: tuple[OwnRow, ...] = ()


def configured(scale: str, file: str | None) -> Params:
    """Return the settings with a user's additions; let this process and its jobs import the code beside the file.

    Raises:
        SettingsError: all errors of the first wrong file, or the rows that can't compete with their neighbours.
    """
    params = load_params(scale)
    if file is None:
        return params
    path = Path(file).expanduser()
    import_beside(path)
    params = merge(params, path)
    if errors := [line for table in params.tables.values() for line in unequal(params, table)]:
        raise SettingsError("\n".join(errors))
    return params


def claim(name: str, scale: str, root: Path = Path()) -> None:
    """Record in the project ``root`` whose results ``results/NAME`` holds, if ``scale`` is the path of a file.

    Raises:
        SettingsError: the results belong to another file, which still exists.
    """
    if is_path(scale):
        note, file = root / layout.JOBS / name / "scale", Path(scale).resolve()
        other = (root / note.read_text()).resolve() if note.exists() else file
        if other != file and other.exists():
            raise SettingsError(f"{file}: name: results/{name} is of {other}, which has this name too; rename one")
        write_text(note, os.path.relpath(file, root.resolve()))  # still valid in a copy of the project


def given_as(name: str, root: Path = Path()) -> str:
    """Return the scale of results/NAME as an argument for commands in ``root``: its name, or its file's path."""
    note = root / layout.JOBS / name / "scale"
    return note.read_text() if note.exists() else name


def merge(params: Params, file: Path) -> Params:
    """Return the settings extended by the recipes and rows of a user's file.

    Raises:
        SettingsError: the file is missing, or all errors of the file.
    """
    own, errors = given(Own, read_yaml(file) or {}, str(file)), list[str]()
    merged, rows = params._replace(tables=dict(params.tables)), [*own.rows]
    with noted(errors, f"{file}: "):
        merged = _with_recipes(merged, own.recipes)
    for name, rounding in own.roundings.items():
        with noted(errors, f"{file}: roundings.{name}: "):
            merged, added = _beside(merged, name, rounding)
            rows += added
    for number in dict.fromkeys(row.table for row in rows):
        with noted(errors, f"{file}: rows: "):
            merged.tables[number] = _extended(merged, number, [row for row in rows if row.table == number])
    if errors:
        raise SettingsError("\n".join(errors))
    return merged


def _with_recipes(params: Params, recipes: dict[str, Recipe]) -> Params:
    """Return the settings extended by ``recipes``."""
    known = params.recipes.recipes
    if taken := [name for name in recipes if name in known]:
        raise SettingsError(f"recipes.{taken[0]}: there is a recipe of this name; choose another")
    return params._replace(recipes=params.recipes.model_copy(update={"recipes": known | recipes}))


def _beside(params: Params, name: str, own: OwnRounding) -> tuple[Params, list[OwnRow]]:
    """Return the settings extended by the recipes of a user's rounding, and its rows for the scale's tables."""
    known, names = params.recipes.recipes, _counterparts(params, name, own.like)
    rows = _rows_beside(params, names, own.like, name)
    if not rows:
        raise SettingsError(f"like: {own.like}: no table of the scale {params.scale.name} has its rows")
    added, like = dict[str, Recipe](), dict(params.like)
    for recipe, other in names.items():
        if select := tuple(names[candidate] for candidate in known[recipe].select):
            change: dict[str, Any] = {"select": select}
        else:
            change, like[other] = {"rounding": own.rounding, "options": own.options}, (recipe, own.hyper)
        added[other] = known[recipe].model_copy(update=change)
    return _with_recipes(params, added)._replace(like=like), rows


def _counterparts(params: Params, name: str, like: str) -> dict[str, str]:
    """Return shown recipe -> its counterpart's name, for the recipes of the rounding ``like`` and their choices.

    A recipe with options is a variant of its rounding, such as FlexRound with a fixed s1, and has no counterpart.
    """
    known, shown = params.recipes.recipes, [recipe for *_, recipe in params.shown()]
    plain = {recipe for recipe in shown if known[recipe].rounding == like and not known[recipe].options}
    return {
        recipe: recipe.replace(like, name.lower()) for recipe in shown if {*(known[recipe].select or [recipe])} <= plain
    }


def _rows_beside(params: Params, names: Mapping[str, str], like: str, name: str) -> list[OwnRow]:
    """Return a counterpart for each row of the recipes ``names``, in every complete table of the scale."""
    label = look_up("like:", params.recipes.roundings, like).rpartition(":")[2]
    shown, rows = {*params.shown()}, list[OwnRow]()
    for table in params.tables.values():
        for row in table.rows() if {*table.runs()} <= shown else ():
            if row.recipe in names:
                method = row.method.partition(" [")[0].removesuffix(" (Ours)")
                method = method.replace(label, name) if label in method else f"{method.partition(' + ')[0]} + {name}"
                own = {"recipe": names[row.recipe], "method": method, "label": None, "table": table.number}
                rows.append(OwnRow(**dict(row) | own | {"extra": ("N/A",) * len(row.extra)}))
    return rows


def _extended(params: Params, number: int, rows: Sequence[OwnRow]) -> Table:
    """Return a table with the user's rows as its last group, so that the paper's rows keep their numbers."""
    table = look_up("table", {str(known): table for known, table in params.tables.items()}, str(number))
    groups = (*table.groups, RowGroup(rows=tuple(rows), compare=True))
    return validate(Table, dict(table) | {"groups": groups}, f"table {number}")


def unequal(params: Params, table: Table) -> list[str]:
    """Return a line for each row that must not compete with its neighbours: other bits, or a user's other grid."""
    return [*_other_bits(params, table)] or [*_other_grids(params, table)]


def _other_bits(params: Params, table: Table) -> Iterator[str]:
    """Yield the rows whose bits differ from their recipes', or without own bits from the rows they compete with."""
    first: dict[str, str] = {}
    for group in table.groups:
        for row in group.rows:
            bits = params.recipes.bits(row.recipe)
            said = row.bits.replace("16", "32") or (first.setdefault(row.section, bits) if group.compare else bits)
            if said != bits:
                text = f"bits = {row.bits or said}, its recipe {row.recipe} has {bits}; change one"
                yield f"{table.file}: {row.method}: {text}"


def _other_grids(params: Params, table: Table) -> Iterator[str]:
    """Yield the user's rows whose grid settings differ from the rows with which they compete.

    B and Q have different grids in the paper's tables, so a row is compared with rows of its own setting, if any.
    """
    made = set(params.shown())
    contests = defaultdict[object, dict[str, list[dict[str, object]]]](lambda: {"B": [], "Q": []})
    own = any(isinstance(row, OwnRow) for row in table.rows())
    groups = [group for group in table.groups if group.compare and own]
    cells = [cell for group in groups for row in group.rows for cell in table.row_cells(row)]
    for row, _, task, checkpoint, _ in cells:
        for name in params.recipe(row.recipe).select or (row.recipe,):
            recipe = params.recipe(name)
            if recipe.setting is None or (task, checkpoint, name) not in made:
                continue
            grid = hyper(params, Run(params.scale.name, task, checkpoint, name, 0))[0].grid(recipe)
            contest = contests[row.section, row.bits, task, checkpoint]
            rivals = contest[recipe.setting] or contest["B"] or contest["Q"]
            if not isinstance(row, OwnRow) or not rivals:
                contest[recipe.setting].append(grid)
            elif grid not in rivals:
                other = [f"{key} = {grid[key]}, not {rivals[0][key]}" for key in grid if grid[key] != rivals[0][key]]
                text = f"{', '.join(other)} as the rows beside it; set that in its recipe"
                yield f"{table.file}: {row.method}: {text}"
