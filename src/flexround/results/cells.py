"""Collect the cells of a table from the evaluated runs. A number comes from its JSON or is missing."""

import dataclasses
import statistics
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from flexround.errors import InputError, SettingsError, suggest
from flexround.results.evaluated import Trial, directory, read_run, trial
from flexround.results.published import Key
from flexround.settings.layout import Run
from flexround.settings.schema import Recipe
from flexround.settings.tables import Row, Table


@dataclasses.dataclass(frozen=True)
class Cell:
    """One number of a table and the trials it is the median of.

    Attributes:
        key: identity, as in the published numbers.
        group: number of the group of rows between two rules, from 1.
        compare: whether the cell can be the best of its group.
        run: the first of the cell's runs.
        metric: of the run's task; the key has the table's name for it.
        expected: how many seeds a complete cell has.
        trials: the evaluated seeds, by seed.
        selected: whether the cell is to be made.
    """

    key: Key
    group: int
    compare: bool
    run: Run
    metric: str
    expected: int
    trials: tuple[Trial, ...]
    selected: bool = True

    @property
    def complete(self) -> bool:
        """Whether all seeds are evaluated."""
        return len(self.trials) == self.expected

    @property
    def median(self) -> float:
        """Median over seeds, as in section 4.2, of a cell with trials."""
        return statistics.median(t.value for t in self.trials)

    @property
    def value(self) -> float | None:
        """The median; None without trials."""
        return self.median if self.trials else None

    @property
    def spread(self) -> float | None:
        """Largest minus smallest value over seeds; None with fewer than two."""
        values = [t.value for t in self.trials]
        return max(values) - min(values) if len(values) > 1 else None

    @property
    def median_trial(self) -> Trial:
        """The trial nearest to the median, the lower seed of two equally near, of a cell with trials."""
        return min(self.trials, key=lambda t: abs(t.value - self.median))


def collect(
    table: Table,
    recipes: Mapping[str, Recipe],
    scale: str,
    seeds: int | Mapping[str, int],
    root: Path,
    selected: Collection[str] | None = None,
) -> list[Cell]:
    """Collect all cells of a table in the paper's order: rows, then columns, then metrics.

    Args:
        table: rows, columns and groups.
        recipes: every recipe by name.
        scale: name of the scale.
        seeds: seeds of a complete quantized cell, of all tasks or by task; full precision has one.
        root: results directory that holds ``SCALE/evaluated/``.
        selected: checkpoints whose runs are read; None for all.

    Raises:
        SettingsError: a row names an unknown recipe.
        InputError: an evaluated run that can't be used.
    """
    cells = []
    for number, group, compare, row in _rows(table):
        if row.recipe not in recipes:
            raise SettingsError(f"params/tables/table{table.number:02d}.yaml: recipe {suggest(row.recipe, recipes)}")
        for _, column, task, checkpoint, metrics in table.row_cells(row):
            run = Run(scale, task, checkpoint, row.recipe, 0)
            of_task = seeds if isinstance(seeds, int) else seeds[task]
            count = of_task if recipes[row.recipe].quantized else 1
            wanted = selected is None or checkpoint in selected
            trials = trials_of(run, metrics, count if wanted else 0, root)
            for metric in metrics:
                name = table.metric_names.get(metric, metric)
                key = Key(table.number, number, row.section, row.method, row.bits, column.name, name)
                cells.append(Cell(key, group, compare, run, metric, count, trials[metric], wanted))
    return cells


def _rows(table: Table) -> Iterator[tuple[int, int, bool, Row]]:
    """Yield row number, group number (both from 1), whether the group is compared, and the row."""
    number = 0
    for group_number, group in enumerate(table.groups, start=1):
        for row in group.rows:
            number += 1
            yield number, group_number, group.compare, row


def trials_of(first: Run, metrics: Sequence[str], count: int, root: Path) -> dict[str, tuple[Trial, ...]]:
    """Return the evaluated trials of each metric of a run, by seed, of at most ``count`` seeds.

    Raises:
        InputError: an evaluated run that can't be used, or seeds with different numbers of examples.
    """
    runs = [dataclasses.replace(first, seed=seed) for seed in range(count)]
    contents = [(run, content) for run in runs if (content := read_run(run, root)) is not None]
    trials = {m: tuple(trial(content, run, root, m) for run, content in contents) for m in metrics}
    for metric, of_metric in trials.items():
        if len(sizes := {t.n_examples for t in of_metric}) > 1:
            raise InputError(
                f"{directory(first, root).parent}: {metric} of its seeds was evaluated on {sorted(sizes)} examples; "
                "delete the older ones and evaluate them again"
            )
    return trials
