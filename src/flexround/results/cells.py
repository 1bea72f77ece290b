"""Collect the cells of a table from the evaluated runs. Each number is read from a run's JSON or is missing."""

import dataclasses
import statistics
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from flexround.errors import InputError, SettingsError, suggest
from flexround.results.evaluated import Trial, directory, read_run
from flexround.results.paper_numbers import Key
from flexround.settings.layout import Run
from flexround.settings.schema import Recipe
from flexround.settings.tables import Table


@dataclasses.dataclass(frozen=True)
class Scope:
    """The evaluated runs of one scale, from which cells are collected."""

    scale: str
    recipes: Mapping[str, Recipe]
    seeds: int | Mapping[str, int]  # for a complete quantized cell, in all or by task; full precision needs one
    root: Path  # the results directory, which holds ``SCALE/evaluated/``
    selected: Collection[str] | None = None  # checkpoints whose runs are read; None selects all


@dataclasses.dataclass(frozen=True)
class Cell:
    """One number of a table: the median of its trials."""

    key: Key
    group: int  # number of the group of rows between two rules, from 1
    compare: bool  # whether the cell can be the best of its group
    run: Run  # the first of the cell's runs
    metric: str  # the task's name of the metric; the key has the table's name
    expected: int  # number of seeds of a complete cell
    trials: tuple[Trial, ...]  # the evaluated seeds, by seed
    selected: bool = True  # whether the cell shall be run

    @property
    def complete(self) -> bool:
        """Whether all seeds are evaluated."""
        return len(self.trials) == self.expected

    @property
    def median(self) -> float:
        """Median over seeds, as in section 4.2; the cell must have trials."""
        return statistics.median(t.value for t in self.trials)

    @property
    def spread(self) -> float | None:
        """Largest minus smallest value over seeds; None with fewer than two."""
        values = [t.value for t in self.trials]
        return max(values) - min(values) if len(values) > 1 else None

    @property
    def median_trial(self) -> Trial:
        """The trial nearest to the median; of two equally near trials the lower seed. The cell must have trials."""
        return min(self.trials, key=lambda t: abs(t.value - self.median))


def collect(table: Table, scope: Scope) -> list[Cell]:
    """Collect all cells of a table in the paper's order: rows, then columns, then metrics.

    Raises:
        SettingsError: a row names an unknown recipe.
        InputError: an evaluated run is unusable.
    """
    cells = []
    groups = [(index, group.compare, row) for index, group in enumerate(table.groups, start=1) for row in group.rows]
    for number, (group, compare, row) in enumerate(groups, start=1):
        if row.recipe not in scope.recipes:
            raise SettingsError(f"{table.file}: recipe {suggest(row.recipe, scope.recipes)}")
        for _, column, task, checkpoint, metrics in table.row_cells(row):
            run = Run(scope.scale, task, checkpoint, row.recipe, 0)
            seeds = scope.seeds if isinstance(scope.seeds, int) else scope.seeds[task]
            count = seeds if scope.recipes[row.recipe].quantized else 1
            wanted = scope.selected is None or checkpoint in scope.selected
            trials = trials_of(run, metrics, count if wanted else 0, scope.root)
            for metric in metrics:
                name = table.metric_names.get(metric, metric)
                key = Key(table.number, number, row.section, row.method, row.bits, column.name, name)
                cells.append(Cell(key, group, compare, run, metric, count, trials[metric], wanted))
    return cells


def trials_of(first: Run, metrics: Sequence[str], count: int, root: Path) -> dict[str, tuple[Trial, ...]]:
    """Return the evaluated trials for each metric of a run, ordered by seed: at most ``count`` seeds.

    Raises:
        InputError: an evaluated run is unusable, or the seeds have different numbers of examples.
    """
    found = [read_run(dataclasses.replace(first, seed=seed), root, metrics) for seed in range(count)]
    trials = {metric: tuple(of_run[metric] for of_run in found if of_run) for metric in metrics}
    for metric, of_metric in trials.items():
        if len(sizes := {t.n_examples for t in of_metric}) > 1:
            raise InputError(
                f"{directory(first, root).parent}: {metric} of its seeds was evaluated on {sorted(sizes)} examples; "
                "delete the older ones and run the same command again"
            )
    return trials
