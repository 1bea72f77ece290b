"""Compare tables with the reference; a cell that is missing or moved, for better or worse, gives exit code 1.

So does a block of the subset with too small a budget: see ``regress.checked_runs``.
"""

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

from flexround.errors import InputError
from flexround.metrics import LARGEST_RATIO
from flexround.regress import checked_runs, tolerances
from flexround.regress.tolerances import Moved, Tolerance
from flexround.results import cells, frames, table_csv
from flexround.results.cells import Scope
from flexround.results.grid import Entry
from flexround.results.published_results import TOLERANCES, published_name
from flexround.settings import layout
from flexround.settings.load import load_params
from flexround.settings.params import Params
from flexround.tools import cli


def parser() -> argparse.ArgumentParser:
    """Return the command line of this program."""
    arguments = cli.parser(__doc__)
    arguments.add_argument(
        "--all", action="store_true", help="every tableN.csv of the scale, not the runs of params/regress.yaml"
    )
    arguments.add_argument("--results", type=Path, default=Path("results"), help="directory with SCALE/")
    arguments.add_argument(
        "--reference", type=Path, default=Path("results/reference"), help="directory of tables and tolerances"
    )
    return arguments


def run(arguments: argparse.Namespace) -> None:
    """Compare the tables and report cells that moved."""
    params = load_params(arguments.scale)
    pairs = _tables(params, arguments) if arguments.all else _subset(params, arguments)
    path = arguments.reference / published_name(params.scale, TOLERANCES)
    lines = frames.lines(frames.read(path, Tolerance, tolerances.REMEDY), Tolerance)
    limits = {line.key: line.tolerance for line in lines}
    moved = [line for found, reference in pairs for line in tolerances.moved(found, reference, limits)]
    for line in moved:
        sys.stdout.write(f"{report(line, params)}\n")
    count = sum(len(reference) for _, reference in pairs)
    sys.stdout.write(f"{count} cells of {len(pairs)} tables compared with the reference, {len(moved)} moved\n")
    short = [] if arguments.all else _unconverged(params, arguments.results)
    for unit in short:
        sys.stdout.write(f"{unit}; at most {LARGEST_RATIO}: give it more iterations, or end them better\n")
    if moved or short:
        sys.exit(1)


def report(moved: Moved, params: Params) -> str:
    """Return the line about a cell that moved: its name, the difference, and its network's source."""
    run, recipes = moved.reference.run, params.recipes.recipes
    quantized = run.recipe in recipes and recipes[run.recipe].quantized
    directory = layout.quantized_dir(run) if quantized else layout.checkpoint_dir(run.scale, run.task, run.checkpoint)
    return f"{moved}; {directory}/manifest.json"


def read_entries(path: Path) -> list[Entry]:
    """Read the CSV of a table."""
    return frames.lines(frames.read(path, Entry, tolerances.REMEDY), Entry)


def _unconverged(params: Params, results: Path) -> list[checked_runs.Unit]:
    """Return the blocks with too few iterations, in the runs of ``params/regress.yaml``."""
    runs = checked_runs.load().runs(params.scale.name)
    quantized = [run for run in runs if params.recipe(run.recipe).quantized]
    return checked_runs.unconverged(unit for run in quantized for unit in checked_runs.units(run, results))


def _tables(params: Params, arguments: argparse.Namespace) -> list[tuple[list[Entry], list[Entry]]]:
    paths = cli.tables(params, arguments.results / params.scale.name).values()
    pairs = [(read_entries(path), read_entries(arguments.reference / path.name)) for path in paths]
    scales = {entry.scale for _, reference in pairs for entry in reference}
    if others := scales - {params.scale.name}:
        raise InputError(
            f"{arguments.reference}: its tables are of the scale {', '.join(sorted(others))}, not of "
            f"{params.scale.name}; make a reference of yours (docs/determinism.md) and name it with --reference"
        )
    return pairs


def _subset(params: Params, arguments: argparse.Namespace) -> list[tuple[list[Entry], list[Entry]]]:
    """Return the cells of the runs in ``params/regress.yaml``, for each table that shows them, and their references."""
    runs = checked_runs.load().runs(params.scale.name)

    def chosen(entries: Iterable[Entry]) -> list[Entry]:
        return [entry for entry in entries if entry.run in runs]

    pairs = []
    for table in params.tables.values():
        seeds = {task: params.seeds(task) for task, _ in table.pairs()}
        collected = cells.collect(table, Scope(params.scale.name, params.recipes.recipes, seeds, arguments.results))
        if found := chosen(frames.lines(table_csv.measured(collected), Entry)):
            pairs.append((found, chosen(read_entries(arguments.reference / f"{table.name}.csv"))))
    return pairs


if __name__ == "__main__":
    cli.main(run, parser())
