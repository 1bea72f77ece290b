"""Make the reference that `make regress` compares with: the tables of a scale, and a tolerance for each cell."""

import argparse
import logging
from collections.abc import Mapping
from pathlib import Path

from flexround.errors import InputError
from flexround.io.artifacts import write_bytes, write_json, write_text
from flexround.regress import checked_runs, compare, tolerances
from flexround.regress.tolerances import Pool, Tolerance
from flexround.results import cells, table_csv, typed_csv
from flexround.results.cells import Cell, Scope
from flexround.results.contests import EXACT
from flexround.results.grid import Entry
from flexround.results.paper_numbers import Key
from flexround.results.published_results import SHARED, SUMMARY, TOLERANCES, published_name
from flexround.results.summary import summarise
from flexround.results.table_csv import number
from flexround.settings.load import load_params
from flexround.settings.params import Params
from flexround.settings.tables import Table
from flexround.tools import cli, verify

log = logging.getLogger(__name__)
MARGIN = 1.25  # of what another kind of CPU moved


def parser() -> argparse.ArgumentParser:
    """Return the command line of this program."""
    arguments = cli.parser(__doc__)
    arguments.add_argument(
        "--rounding", help="name of a scale that differs from it in the number of threads alone, if there is one"
    )
    arguments.add_argument(
        "--elsewhere", type=Path, help="directory of tables made on another kind of CPU; may lack tables and rows"
    )
    arguments.add_argument("--seeds", type=int, help="trials that the tables were made with; none: the scale's")
    arguments.add_argument("--results", type=Path, default=Path("results"), help="directory with SCALE/")
    arguments.add_argument("--out", type=Path, default=Path("results/reference"), help="directory of the reference")
    return arguments


def run(arguments: argparse.Namespace) -> None:
    """Copy the tables, their claims and errata, and write tolerances."""
    params, chosen = load_params(arguments.scale), checked_runs.load()
    directory = arguments.results / params.scale.name
    tables = cli.tables(params, directory)
    for path, problem in verify.untrue(directory, params):
        raise InputError(f"{path}: {problem}; make the table again")
    entries = [entry for path in tables.values() for entry in _complete(path, params, arguments.seeds)]
    shown = [params.tables[number] for number in tables]
    found = _cells(params, shown, params.scale.name, chosen.seeds, arguments.results)
    reordered = _cells(params, shown, arguments.rounding, 1, arguments.results) if arguments.rounding else {}
    limits = _allowed(params, chosen, found, reordered, {entry.key: entry.lead_stderr for entry in entries})
    if arguments.elsewhere:
        paths = [arguments.elsewhere / path.name for path in tables.values()]
        others = [entry for path in paths if path.exists() for entry in compare.read_entries(path)]
        limits |= _widened(limits, entries, others)
    write_text(arguments.out / published_name(params.scale, TOLERANCES), _csv(entries, limits))
    for path in tables.values():
        write_bytes(arguments.out / path.name, path.read_bytes())
    for name in SHARED:
        if (directory / name).exists():
            write_bytes(arguments.out / published_name(params.scale, name), (directory / name).read_bytes())
    write_json(arguments.out / published_name(params.scale, SUMMARY), summarise(tables.values()))
    log.info("%d cells of tables %s; not there: %s", len(entries), list(tables), sorted(params.tables.keys() - tables))


def _allowed(
    params: Params,
    chosen: checked_runs.Subset,
    found: dict[Key, Cell],
    others: dict[Key, Cell],
    leads: Mapping[Key, float | None],
) -> dict[Key, Tolerance]:
    """Return the tolerance of each cell.

    ``others`` were computed with sums in another order, as far as they are; ``leads`` are the standard errors of the
    differences between cells and their rivals.
    """
    recipes = params.recipes.recipes
    kinds = {key: tolerances.kind(cell, chosen.family(cell.run.task), recipes) for key, cell in found.items()}
    once = {(cell.run, cell.trials[0].metric): key for key, cell in found.items()}  # tables share runs
    seeds = Pool(tolerances.spread(found[key].trials, kinds[key]) for key in once.values())
    pairs = {key: (found[key].trials[0], others[key].trials[0]) for key in once.values() if key in others}
    rounding = Pool(tolerances.spread(pair, kinds[key]) for key, pair in pairs.items())
    limits = {}
    for key, cell in found.items():
        trained = params.train(cell.run.task, cell.run.checkpoint) is not None
        recipe = recipes[cell.run.recipe]
        limits[key] = tolerances.allowed(cell, kinds[key], recipe, seeds, rounding, trained, leads.get(key))
    return limits


def _widened(limits: dict[Key, Tolerance], entries: list[Entry], others: list[Entry]) -> dict[Key, Tolerance]:
    """Return the tolerances of cells that ``others``, of another kind of CPU, move by more: 1.25 x the difference."""
    there = {entry.key: entry.value for entry in others}
    apart = {
        entry.key: abs(entry.value - other)
        for entry in entries
        if entry.value is not None and (other := there.get(entry.key)) is not None
    }
    return {
        key: limits[key]._replace(tolerance=tolerances.rounded_up(MARGIN * difference), source="another kind of CPU")
        for key, difference in apart.items()
        if key in limits and round(difference, EXACT) > limits[key].tolerance
    }


def _complete(path: Path, params: Params, seeds: int | None) -> list[Entry]:
    """Read a table and refuse what can't be a reference."""
    entries = compare.read_entries(path)
    for entry in entries:
        if entry.value is None:
            raise InputError(f"{path}: {entry.key} is missing; a reference holds every cell, make the table first")
        if entry.status == "partial":
            raise InputError(f"{path}: {entry.key} lacks seeds; make the table first, or with fewer seeds")
        if entry.n_seeds and entry.n_seeds > (wanted := seeds or params.seeds(entry.task)):
            raise InputError(f"{path}: {entry.n_seeds} seeds, expected {wanted}; make the table anew or give --seeds")
    return entries


def _cells(params: Params, tables: list[Table], scale: str, seeds: int, results: Path) -> dict[Key, Cell]:
    scope = Scope(scale, params.recipes.recipes, seeds, results)
    return {cell.key: cell for table in tables for cell in cells.collect(table, scope) if cell.trials}


def _csv(entries: list[Entry], limits: dict[Key, Tolerance]) -> str:
    """Return the tolerances as CSV; a setting, which no run is behind, may not move at all."""
    lines = []
    for entry in entries:
        if entry.n_examples and entry.key not in limits:
            raise InputError(f"{entry.run}: is in a table but not evaluated; make the table again")
        limit = limits[entry.key] if entry.n_examples else Tolerance(entry.key, None, 0.0, 0.0, "setting")
        numbers = {"n_seeds": limit.n_seeds or "", "sd": number(limit.sd), "tolerance": number(limit.tolerance)}
        lines.append(limit.key._asdict() | numbers | {"source": limit.source})
    return table_csv.write(lines, tuple(typed_csv.columns(Tolerance)))


if __name__ == "__main__":
    cli.main(run, parser())
