"""Make the reference that `make regress` compares with: the tables of a scale, and a tolerance for each cell."""

import argparse
import csv
import io
import logging
from pathlib import Path

from flexround.errors import InputError
from flexround.io.artifacts import write_bytes, write_json, write_text
from flexround.regress import checked_runs, compare, tolerances
from flexround.regress.compare import Number, tolerances_file
from flexround.regress.tolerances import Allowed, Pool
from flexround.results import cells
from flexround.results.cells import Cell, Scope
from flexround.results.paper_numbers import DECIMALS, Key
from flexround.results.published_results import SHARED, SUMMARY, published_name
from flexround.results.summary import summarise
from flexround.settings.load import load_params
from flexround.settings.params import Params
from flexround.settings.tables import Table
from flexround.tools import cli

log = logging.getLogger(__name__)
COLUMNS = (*Key._fields, "n_seeds", "sd", "tolerance", "source")


def parser() -> argparse.ArgumentParser:
    """Return the command line of this program."""
    arguments = cli.parser(__doc__)
    arguments.add_argument(
        "--rounding", help="name of a scale that differs from it in the number of threads alone, if there is one"
    )
    arguments.add_argument("--seeds", type=int, help="trials that the tables were made with; none: the scale's")
    arguments.add_argument("--results", type=Path, default=Path("results"), help="directory with SCALE/")
    arguments.add_argument("--out", type=Path, default=Path("results/reference"), help="directory of the reference")
    return arguments


def run(arguments: argparse.Namespace) -> None:
    """Copy the tables, their claims and errata, and write tolerances.

    Raises:
        InputError: no table, one with missing cells or with other seeds than the scale has.
    """
    params, chosen = load_params(arguments.scale), checked_runs.load()
    directory = arguments.results / params.scale.name
    tables = cli.tables(params, directory)
    numbers = {
        key: number for path in tables.values() for key, number in _complete(path, params, arguments.seeds).items()
    }
    shown = [params.tables[number] for number in tables]
    found = _cells(params, shown, params.scale.name, chosen.seeds, arguments.results)
    others = _cells(params, shown, arguments.rounding, 1, arguments.results) if arguments.rounding else {}
    limits = _allowed(params, chosen, found, others)
    write_text(arguments.out / tolerances_file(params.scale.shows.tables), _csv(numbers, found, limits))
    for path in tables.values():
        write_bytes(arguments.out / path.name, path.read_bytes())
    for name in SHARED:
        if (directory / name).exists():
            write_bytes(arguments.out / published_name(params.scale, name), (directory / name).read_bytes())
    write_json(arguments.out / published_name(params.scale, SUMMARY), summarise(tables.values()))
    log.info("%d cells of tables %s; not there: %s", len(numbers), list(tables), sorted(params.tables.keys() - tables))


def _allowed(
    params: Params, chosen: checked_runs.Subset, found: dict[Key, Cell], others: dict[Key, Cell]
) -> dict[Key, Allowed]:
    """Return the tolerance of each cell; ``others`` were computed with sums in another order, as far as they are."""
    recipes = params.recipes.recipes
    kinds = {key: tolerances.kind(cell, chosen.family(cell.run.task), recipes) for key, cell in found.items()}
    once = {(cell.run, cell.trials[0].metric): key for key, cell in found.items()}  # tables share runs
    seeds = Pool(tolerances.of_seeds(found[key], kinds[key]) for key in once.values())
    pairs = [(found[key], others[key], kinds[key]) for key in once.values() if key in others]
    rounding = Pool(tolerances.of_rounding(*pair) for pair in pairs)
    return {
        key: tolerances.allowed(cell, kinds[key], recipes[cell.run.recipe].quantized, seeds, rounding)
        for key, cell in found.items()
    }


def _complete(path: Path, params: Params, seeds: int | None) -> dict[Key, Number]:
    """Read a table and refuse what can't be a reference."""
    for key, line in compare.read_lines(path, dict).items():
        if not line["value"]:
            raise InputError(f"{path}: {key} is missing; a reference holds every cell, make the table first")
        if line["n_seeds"] and int(line["n_seeds"]) > (wanted := seeds or params.seeds(line["task"])):
            raise InputError(f"{path}: {line['n_seeds']} seeds, expected {wanted}; make the table anew or give --seeds")
    return compare.read_table(path)


def _cells(params: Params, tables: list[Table], scale: str, seeds: int, results: Path) -> dict[Key, Cell]:
    """Return the evaluated cells of tables at a scale."""
    scope = Scope(scale, params.recipes.recipes, seeds, results)
    return {cell.key: cell for table in tables for cell in cells.collect(table, scope) if cell.trials}


def _csv(numbers: dict[Key, Number], found: dict[Key, Cell], limits: dict[Key, Allowed]) -> str:
    """Return the tolerances as CSV; a setting, which no run is behind, may not move at all."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for key, number in numbers.items():
        if number.n_examples and key not in limits:
            raise InputError(f"{number.run}: is in a table but not evaluated; make the table again")
        trials = len(found[key].trials) if number.n_examples else ""
        limit = limits[key] if number.n_examples else Allowed(0.0, 0.0, "setting")
        writer.writerow(
            (*key, trials, *(f"{value:.{DECIMALS}f}" for value in (limit.sd, limit.tolerance)), limit.source)
        )
    return text.getvalue()


if __name__ == "__main__":
    cli.main(run, parser())
