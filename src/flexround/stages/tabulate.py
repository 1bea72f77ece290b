"""Make one table: CSV, LaTeX and HTML from the evaluated runs of a scale, or from its settings, and print it."""

import argparse
import sys
from pathlib import Path

from flexround.artifacts import write_text
from flexround.errors import SettingsError, suggest
from flexround.results import cells, published, settings_table, table_csv
from flexround.results.render import html, latex, terminal
from flexround.settings.load import load_params
from flexround.stages import cli


def parser() -> argparse.ArgumentParser:
    """Return the command line of this stage."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--scale", default="mini", help="name of a file in params/scales (mini), or a path to one")
    arguments.add_argument("--table", required=True, type=int, help="the paper's table number, e.g. 3")
    arguments.add_argument("--seeds", type=int, help="seeds of a complete cell; the scale's own number if not given")
    arguments.add_argument(
        "--evaluated", type=Path, default=Path("results"), help="directory with SCALE/evaluated (results)"
    )
    arguments.add_argument("--out", type=Path, help="directory for tableN.csv, .tex and .html (results/SCALE)")
    return arguments


def run(arguments: argparse.Namespace) -> None:
    """Make the CSV, write the three files and print the table.

    Raises:
        SettingsError: an unknown table, a number of seeds below one, or a setting that the scale lacks.
        InputError: an evaluated run that can't be used.
    """
    params = load_params(arguments.scale)
    scale = params.scale
    seeds = scale.seeds if arguments.seeds is None else arguments.seeds
    if seeds < 1:
        raise SettingsError(f"--seeds {seeds}: give at least 1")
    if arguments.table not in params.tables:
        raise SettingsError(f"--table {suggest(str(arguments.table), map(str, params.tables))}")
    table = params.tables[arguments.table]
    if table.settings:
        text = settings_table.to_csv(table, settings_table.resolve(table, params), scale, published.load())
    else:
        found = cells.collect(table, params.recipes.recipes, scale.name, seeds, arguments.evaluated)
        text = table_csv.to_csv(found, published.load(), table, scale)
    files = {"csv": text, "tex": latex.render(text, table, scale), "html": html.render(text, table, scale)}
    out = arguments.out or Path("results") / scale.name
    for suffix, content in files.items():
        write_text(out / f"table{table.number}.{suffix}", content)
    sys.stdout.write(terminal.render(text, scale))


if __name__ == "__main__":
    cli.main(run, parser())
