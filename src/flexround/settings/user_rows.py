"""The user's own recipes, and rows for them in the paper's tables: one YAML file outside the project."""

import os
from collections.abc import Sequence
from pathlib import Path

from flexround.errors import SettingsError, look_up, suggest
from flexround.io.artifacts import write_text
from flexround.settings import layout
from flexround.settings.checks import check_bits, check_rounding
from flexround.settings.layout import Run
from flexround.settings.load import import_beside, is_path, load_params
from flexround.settings.params import Params, hyper
from flexround.settings.schema import Count, Name, Recipe, Recipes, Strict
from flexround.settings.tables import Row, RowGroup, Table
from flexround.settings.validation import attempt, given, noted, read_yaml, validate


class OwnRow(Row):
    """A row that the user adds below those of a table of the paper. It has no published numbers."""

    table: Count


class Own(Strict):
    """The user's file."""

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
    return merge(params, read(path), path)


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


def read(file: Path) -> Own:
    """Read the user's file.

    Raises:
        SettingsError: it is missing, or all that is wrong in it, with its keys.
    """
    return given(Own, read_yaml(file) or {}, str(file))


def merge(params: Params, own: Own, file: Path) -> Params:
    """Return the settings with the user's recipes and rows among them; ``file`` is named in errors.

    Raises:
        SettingsError: everything that doesn't fit together.
    """
    recipes = Recipes(roundings=params.recipes.roundings, recipes=own.recipes | params.recipes.recipes)
    merged = params._replace(recipes=recipes)
    errors = [line for name in own.recipes for line in _recipe_errors(params, merged, own, name)]
    tables = dict(params.tables)
    for number in dict.fromkeys(row.table for row in own.rows):
        with noted(errors, "rows: "):
            tables[number] = _extended(params, number, [row for row in own.rows if row.table == number])
    merged = merged._replace(tables=tables)
    errors += _row_errors(merged, own)
    if not errors:
        for number in {row.table for row in own.rows}:
            errors += [f"rows: table {number}, {line}" for line in check_bits(merged, tables[number])]
    if errors:
        raise SettingsError("\n".join(f"{file}: {line}" for line in dict.fromkeys(errors)))
    return merged


def _extended(params: Params, number: int, rows: Sequence[OwnRow]) -> Table:
    """Return a table with a last group of the user's rows, so that the paper's keep their numbers."""
    table = look_up("table", {str(known): table for known, table in params.tables.items()}, str(number))
    if table.settings:
        raise SettingsError(f"table {number} shows settings, not results; it takes no rows")
    if errors := [line for row in rows for line in _shape_errors(table, row)]:
        raise SettingsError("\n".join(errors))
    groups = (*table.groups, RowGroup(rows=tuple(rows), compare=True))
    return validate(Table, dict(table) | {"groups": groups}, f"table {number}")


def _shape_errors(table: Table, row: OwnRow) -> list[str]:
    """Return which descriptive cells a row lacks or has too many, compared with the table's own."""
    errors = []
    for key in ("section", "bits", "extra"):
        wanted = max(getattr(other, key) for other in table.rows())
        given = getattr(row, key)
        if bool(given) != bool(wanted) or (key == "extra" and len(given) != len(wanted)):
            way = f"give it as the table's rows do, such as {wanted!r}" if wanted else "the table has none; omit it"
            errors.append(f"table {table.number}, {row.method}: {key} = {given!r}: {way}")
    return errors


def _recipe_errors(params: Params, merged: Params, own: Own, name: str) -> list[str]:
    """Return what is wrong with one of the user's recipes."""
    recipe = own.recipes[name]
    if name in params.recipes.recipes:
        return [f"recipes.{name}: the project has a recipe of this name; choose another"]
    if recipe.rounding is None:
        return [f"recipes.{name}: give setting, rounding and w_bits"]
    return attempt(f"recipes.{name}: ", check_rounding, merged, recipe)


def _row_errors(params: Params, own: Own) -> list[str]:
    """Return which rows name what there is not, and which settings of their runs are missing or wrong."""
    errors = []
    for row in own.rows:
        for known, name in ((params.recipes.recipes, row.recipe), (params.scale.tasks, row.task)):
            if name and name not in known:
                errors.append(f"rows: table {row.table}, {row.method}: {suggest(name, known)}")
        if row.recipe in own.recipes and row.table in params.tables:
            errors += _run_errors(params, row)
    return errors


def _run_errors(params: Params, row: OwnRow) -> list[str]:
    """Return what is wrong with the hyper-parameters of a row's runs, as far as the scale can make them."""
    errors = []
    for cell in params.tables[row.table].row_cells(row):
        if cell.task in params.scale.tasks and cell.checkpoint in params.scale.checkpoints:
            run = Run(params.scale.name, cell.task, cell.checkpoint, row.recipe, 0)
            lines = attempt("", hyper, params, run)
            errors += [f"recipes.{row.recipe}: {line.partition(f'{run}: ')[2]}" for line in lines]
    return errors
