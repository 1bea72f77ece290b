"""What the jobs of tables, figures and claims have in common."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from flexround.jobs.jobfile import Job, Plan
from flexround.results import paper_numbers
from flexround.results.cells import Scope
from flexround.results.paper_numbers import Key
from flexround.settings import layout
from flexround.settings.layout import ROOT, Run
from flexround.settings.schema import Count, Recipe, ScaleFacts
from flexround.settings.tables import Table

RESULTS = Path("results")
TEMPLATES = Path("src/flexround/results/render/templates")  # code too, but not Python


class ShowingJob(Job):
    """What a job knows that compares the evaluated runs of tables with the published numbers."""

    scale: ScaleFacts
    seeds: dict[str, Count] = Field(description="of a complete quantized cell, by task")
    selected: tuple[str, ...] | None = Field(None, description="checkpoints whose cells are made; none: all")
    recipes: dict[str, Recipe] = Field(description="of the rows")
    numbers: tuple[tuple[Key, float], ...] = Field(description="that the paper prints in these tables")

    @property
    def scope(self) -> Scope:
        """The evaluated runs that the cells of the tables are collected from."""
        return Scope(self.scale.name, self.recipes, self.seeds, RESULTS, self.selected)


def showing(plan: Plan, tables: Sequence[Table]) -> dict[str, Any]:
    """Return the fields of a :class:`ShowingJob` of tables."""
    printed = paper_numbers.load() if plan.scale.shows.published else {}
    wanted = {table.number for table in tables}
    return {
        "scale": plan.scale,
        "seeds": {task: plan.seeds(task) for table in tables for task, _ in table.pairs()},
        "selected": plan.selected,
        "recipes": {row.recipe: plan.params.recipe(row.recipe) for table in tables for row in table.rows()},
        "numbers": tuple((key, value) for key, value in printed.items() if key.table in wanted),
    }


def templates(page: str | None = None) -> tuple[str, ...]:
    """Return the templates of an output, or all."""
    shared = {"base.html", "grid.html", "marks.html", "style.css"}
    every = sorted(path.name for path in (ROOT / TEMPLATES).iterdir())
    names = [name for name in every if page in (None, name.partition(".")[0]) or name in shared]
    return tuple(str(TEMPLATES / name) for name in names)


def evaluated(runs: Iterable[Run]) -> list[str]:
    """Return the evaluations that something is made of, each once."""
    return list(dict.fromkeys(file for run in runs for file in layout.evaluated_files(run)))
