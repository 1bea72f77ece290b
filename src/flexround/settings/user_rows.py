"""The user's own recipes, and rows for them in the paper's tables: one YAML file outside the project."""

import os
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flexround.errors import SettingsError, look_up, suggest
from flexround.io.artifacts import write_text
from flexround.settings import code, layout
from flexround.settings.checks import check_bits, check_metrics, check_recipe, check_runs
from flexround.settings.layout import Run
from flexround.settings.load import import_beside, is_path, load_params
from flexround.settings.params import Params, hyper, matching
from flexround.settings.schema import Count, Hyper, HyperRule, Name, Recipe, Recipes, Strict
from flexround.settings.tables import Row, RowGroup, Table
from flexround.settings.validation import given, noted, read_yaml, validate, wrong_parts


class OwnRow(Row):
    """A row that the user adds below those of a table of the paper. It has no published numbers."""

    table: Count


class OwnRounding(Strict):
    """A rounding of the user's that has a recipe for each recipe, and a row for each row, of one of the project's."""

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
    """Return the settings with the additions of a user's file, and let this process and its jobs import what they name.

    Raises:
        SettingsError: all errors of the project's files together, or all of the user's.
    """
    params = load_params(scale)
    if file is None:
        return params
    path = Path(file).expanduser()
    import_beside(path)
    return merge(params, path)


def claim(name: str, scale: str, root: Path = Path()) -> None:
    """Note in the project ``root`` which file's results lie in ``results/NAME``, for a ``scale`` given as a path.

    Raises:
        SettingsError: they are those of another file, which is still there.
    """
    if is_path(scale):
        note, file = root / layout.JOBS / name / "scale", Path(scale).resolve()
        other = (root / note.read_text()).resolve() if note.exists() else file
        if other != file and other.exists():
            raise SettingsError(f"{file}: name: results/{name} is of {other}, which has this name too; rename one")
        write_text(note, os.path.relpath(file, root.resolve()))  # still true in a copy of the project


def given_as(name: str, root: Path = Path()) -> str:
    """Return the scale of results/NAME as commands in the project ``root`` take it: its name, or its file's path."""
    note = root / layout.JOBS / name / "scale"
    return note.read_text() if note.exists() else name


def merge(params: Params, file: Path) -> Params:
    """Return the settings with the recipes and rows of a user's file among them.

    Raises:
        SettingsError: the file is missing, or everything in it that is wrong or doesn't fit together.
    """
    own, errors = given(Own, read_yaml(file) or {}, str(file)), list[str]()
    recipes = Recipes(roundings=params.recipes.roundings, recipes=params.recipes.recipes | own.recipes)
    merged = params._replace(recipes=recipes, tables=dict(params.tables))
    for name, recipe in own.recipes.items():
        if name in params.recipes.recipes:
            errors.append(f"recipes.{name}: the project has a recipe of this name; choose another")
        elif recipe.rounding is None:
            errors.append(f"recipes.{name}: give setting, rounding and w_bits")
        else:
            errors += check_recipe(merged, name, f"recipes.{name}")
    for name, rounding in own.roundings.items():
        with noted(errors, f"roundings.{name}: "):
            merged, rows = _beside(merged, name, rounding)
            own = own.model_copy(update={"rows": (*own.rows, *rows)})
    for number in dict.fromkeys(row.table for row in own.rows):
        with noted(errors, "rows: "):
            merged.tables[number] = _extended(merged, number, [row for row in own.rows if row.table == number])
    shown = {f"rows: table {number}": merged.tables[number] for number in {row.table for row in own.rows} if not errors}
    if not errors:
        errors = check_runs(merged, (*own.recipes, *merged.like))
        for where, table in shown.items():
            errors += check_metrics(merged, table, where)
            errors += [f"{where}, {line}" for line in check_bits(merged, table)]
    if not errors:
        errors = [f"{where}, {line}" for where, table in shown.items() for line in _other_grids(merged, table)]
    if errors:
        raise SettingsError("\n".join(f"{file}: {line}" for line in errors))
    return merged


def _beside(params: Params, name: str, own: OwnRounding) -> tuple[Params, list[OwnRow]]:
    """Return the settings with the recipes of a user's rounding, and its rows of the scale's tables."""
    label = look_up("like:", params.recipes.roundings, own.like).rpartition(":")[2]
    code.check_rounding(params.rounding_target(own.rounding), own.options)
    known, names = dict(params.recipes.recipes), _counterparts(params, name, own.like)
    errors = [f"{other}: there is a recipe of this name; choose another" for other in names.values() if other in known]
    rows = _rows_beside(params, names, label, name)
    if not rows:
        errors.append(f"like: {own.like}: no table of the scale {params.scale.name} has its rows")
    for recipe, other in names.items():
        select = tuple(names[candidate] for candidate in known[recipe].select)
        change = {"select": select} if select else {"rounding": own.rounding, "options": own.options}
        known[other] = known[recipe].model_copy(update=change)
    learned = {recipe: other for recipe, other in names.items() if not known[recipe].select}
    merged = params._replace(
        recipes=params.recipes.model_copy(update={"recipes": known}),
        like={**params.like, **{other: (recipe, own.hyper) for recipe, other in learned.items()}},
    )
    runs = [Run("", task, checkpoint, learned[r], 0) for task, checkpoint, r in params.shown() if r in learned]
    for place, rule in enumerate(own.hyper):
        errors += wrong_parts(Hyper, rule.set, f"hyper.{place}.set")
        if not any(matching([rule], **vars(run) | dict(known[run.recipe])) for run in runs):
            errors.append(f"hyper.{place}.when: fits none of its runs")
    if errors:
        raise SettingsError("\n".join(errors))
    return merged, rows


def _counterparts(params: Params, name: str, like: str) -> dict[str, str]:
    """Return recipe of a table -> name of its counterpart, of the recipes of a rounding and choices among them.

    A recipe with options is a variant of its rounding, such as FlexRound with a fixed s1: no other rounding has it.
    """
    known, shown = params.recipes.recipes, [recipe for *_, recipe in params.shown()]
    plain = {recipe for recipe in shown if known[recipe].rounding == like and not known[recipe].options}
    return {
        recipe: recipe.replace(like, name.lower()) for recipe in shown if {*(known[recipe].select or [recipe])} <= plain
    }


def _rows_beside(params: Params, names: Mapping[str, str], label: str, name: str) -> list[OwnRow]:
    """Return a row for each row of the recipes ``names``, in every table that the scale can make."""
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
    """Return a table with a last group of the user's rows, so that the paper's keep their numbers."""
    table = look_up("table", {str(known): table for known, table in params.tables.items()}, str(number))
    if table.settings:
        raise SettingsError(f"table {number} shows settings, not results; it takes no rows")
    errors = [line for row in rows for line in _row_errors(params, table, row)]
    seen = Counter(key for row in (*table.rows(), *rows) for key in _keys(row))
    twice = dict.fromkeys(row.method for row in rows if any(seen[key] > 1 for key in _keys(row)))
    errors += [f"table {number}, {method}: twice in the table; remove one" for method in twice]
    if errors:
        raise SettingsError("\n".join(errors))
    groups = (*table.groups, RowGroup(rows=tuple(rows), compare=True))
    return validate(Table, dict(table) | {"groups": groups}, f"table {number}")


def _keys(row: Row) -> list[tuple[object, ...]]:
    """Return what names a row, and what its cells are of: no two rows of a table can have one of them."""
    where = (row.section, row.bits, row.extra)
    return [(*where, row.method), (*where, row.recipe, row.task, row.checkpoint, row.metrics)]


def _other_grids(params: Params, table: Table) -> list[str]:
    """Return the user's rows that differ in a setting of their grids from the rows with which they compete.

    B and Q have different grids in the paper's tables: a row is compared with those of its setting, if there are any.
    """
    errors, made = list[str](), set(params.shown())
    contests = defaultdict[object, dict[str, list[dict[str, object]]]](lambda: {"B": [], "Q": []})
    cells = [cell for group in table.groups if group.compare for row in group.rows for cell in table.row_cells(row)]
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
                given = ", ".join(
                    f"{key} = {grid[key]} ({rivals[0][key]})" for key in grid if grid[key] != rivals[0][key]
                )
                errors.append(f"{row.method}: {given}: in brackets those of the rows beside it; set them in its recipe")
    return list(dict.fromkeys(errors))


def _row_errors(params: Params, table: Table, row: OwnRow) -> list[str]:
    """Return what a row names that is not there, and which descriptive cells it lacks or has too many."""
    where = f"table {table.number}, {row.method}"
    named = (
        (params.recipes.recipes, row.recipe),
        (params.scale.tasks, row.task),
        (params.scale.checkpoints, row.checkpoint),
    )
    errors = [f"{where}: {suggest(name, known)}" for known, name in named if name and name not in known]
    compared = [other for group in table.groups if group.compare for other in group.rows]
    for key in ("section", "bits", "extra"):
        others = [getattr(other, key) for other in compared or table.rows()]
        given, wanted = getattr(row, key), max(others)
        if bool(given) not in map(bool, others) or (key == "extra" and len(given) != len(wanted)):
            way = f"give it as the table's rows do, such as {wanted!r}" if wanted else "the table has none; omit it"
            errors.append(f"{where}: {key} = {given!r}: {way}")
        elif key == "section" and given not in others:
            errors.append(f"{where}: section {suggest(given, {*others})}")
    return errors
