"""Compare two rows of a table from existing scores: paired difference, 95 % interval, p value, examples, seeds.

flexround compare table3 "Q + FlexRound" "Q + AdaRound"
flexround compare real1 LRQ GPTQ --own mine.yaml
"""

import argparse
import re
import sys
from pathlib import Path

import pandas as pd

from flexround.errors import InputError, look_up, suggest
from flexround.results import cells, paired
from flexround.results.cells import Cell, Scope
from flexround.results.render import words
from flexround.results.table_csv import number
from flexround.settings import user_rows
from flexround.settings.tables import Table
from flexround.tools import cli

MOST = 100  # highest number of seeds to look for
HEADER = (
    *("bits", "section", "column", "metric", "one", "other"),
    *("difference", "95 % interval", "p", "examples", "seeds"),
)


def parser() -> argparse.ArgumentParser:
    """Return the command line of this program."""
    arguments = cli.parser(__doc__)
    arguments.prog, arguments.formatter_class = "flexround compare", argparse.RawDescriptionHelpFormatter
    arguments.set_defaults(scale=None, run=run)
    arguments.add_argument("table", help="such as table3 or real1")
    arguments.add_argument("one", help="method of a row, or how it begins")
    arguments.add_argument("other", help="method of another row")
    arguments.add_argument("--own", metavar="FILE", help="your recipes and rows, as in --config own=FILE")
    arguments.add_argument("--results", type=Path, default=Path("results"), help="directory with SCALE/evaluated/")
    return arguments


def run(arguments: argparse.Namespace) -> None:
    """Print a line for each column, metric, section and number of bits.

    Raises:
        InputError: the table or a row is unknown, or the rows have no evaluated cells in common.
    """
    series = re.sub(r"\d+$", "", arguments.table)
    params = user_rows.configured(arguments.scale or ("mini" if series == "table" else series), arguments.own)
    table = look_up("table", {each.name: each for each in params.tables.values()}, arguments.table)
    scope = Scope(params.scale.name, params.recipes.recipes, MOST, arguments.results)
    ones, others = (_row_cells(table, name, scope) for name in (arguments.one, arguments.other))
    lines = [_line(ones[key], others[key]) for key in ones if key in others]
    if not lines:
        raise InputError(f"{arguments.table}: nothing is evaluated of both rows yet; make results/{table.name}.csv")
    sys.stdout.write(pd.DataFrame(lines, columns=list(HEADER)).to_string(index=False) + "\n")


def _row_cells(table: Table, name: str, scope: Scope) -> dict[tuple[str, ...], Cell]:
    """Return the evaluated cells of rows whose method begins with ``name``, by section, bits, column and metric."""
    methods = [row.method for group in table.groups for row in group.rows]
    chosen = [method for method in methods if method.startswith(name)]
    if not chosen:
        raise InputError(f"{table.name}: row {suggest(name, methods)}")
    groups = [
        group.model_copy(update={"rows": tuple(row for row in group.rows if row.method == min(chosen, key=len))})
        for group in table.groups
    ]
    found = cells.collect(table.model_copy(update={"groups": tuple(groups)}), scope)
    return {(c.key.section, c.key.bits, c.key.column, c.key.metric): c for c in found if c.trials}


def _line(one: Cell, other: Cell) -> tuple[str, ...]:
    """Return the difference of two cells, see ``HEADER``; common seeds are paired."""
    count = min(len(one.trials), len(other.trials))
    pair = [cell.trials[:count] for cell in (one, other)]
    means = [sum(trial.value for trial in trials) / count for trials in pair]
    sure = paired.difference(*pair)
    key = one.key
    interval = f"{sure.value - sure.noise:+.2f} to {sure.value + sure.noise:+.2f}"
    facts = key.bits, key.section, key.column, key.metric, *map(number, means), f"{sure.value:+.2f}"
    return *facts, interval, words.probability(sure.p_value), str(pair[0][0].n_examples), str(count)


if __name__ == "__main__":
    cli.main(run, parser())
