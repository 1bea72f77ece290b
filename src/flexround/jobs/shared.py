"""What the jobs of tables, figures and claims have in common."""

from collections.abc import Iterable
from pathlib import Path

from pydantic import Field

from flexround.jobs.jobfile import Inputs, Plan, numbered
from flexround.results import paper_numbers
from flexround.results.paper_numbers import Key, Point
from flexround.settings import layout
from flexround.settings.layout import ROOT, Run
from flexround.settings.schema import Count, Recipe, ScaleFacts, Strict
from flexround.settings.tables import SampleSize, Table

RESULTS = Path("results")
TEMPLATES = Path("src/flexround/results/render/templates")  # code too, but not Python
Numbers = tuple[tuple[Key, float], ...]


class Sizes(Strict):
    """Accuracy against calibration size: figure 7."""

    spec: SampleSize
    points: tuple[Point, ...] = Field(description="of the paper")
    sizes: tuple[Count, ...]
    seeds: Count


def sizes(plan: Plan) -> Sizes:
    """Return what figure 7 shows."""
    figures = plan.scale.figures
    return Sizes(
        spec=plan.params.figures.sample_size,
        points=tuple(paper_numbers.load_figure7()) if plan.scale.shows.published else (),
        sizes=figures.sample_sizes,
        seeds=figures.sample_size_seeds,
    )


def facts(plan: Plan) -> ScaleFacts:
    """Return what a table says of its scale."""
    return ScaleFacts(**{name: getattr(plan.scale, name) for name in ScaleFacts.model_fields})


def numbers(plan: Plan) -> Numbers:
    """Return the published numbers of what the scale shows."""
    return tuple(paper_numbers.load().items()) if plan.scale.shows.published else ()


def recipes(plan: Plan, tables: Iterable[Table]) -> dict[str, Recipe]:
    """Return the recipes of the rows of tables."""
    return {row.recipe: plan.params.recipe(row.recipe) for table in tables for row in table.rows()}


def seeds(plan: Plan, tables: Iterable[Table]) -> dict[str, int]:
    """Return the seeds of a complete cell of each task of tables."""
    return {task: plan.seeds(task) for table in tables for task, _ in table.pairs()}


def templates(page: str) -> Inputs:
    """Return the templates of an output."""
    shared = {"base.html", "grid.html", "marks.html", "style.css"}
    names = sorted(path.name for path in (ROOT / TEMPLATES).iterdir() if path.stem == page or path.name in shared)
    return numbered("template", (str(TEMPLATES / name) for name in names))


def evaluated(runs: Iterable[Run]) -> Inputs:
    """Return the evaluations that something is made of."""
    return numbered("of", dict.fromkeys(file for run in runs for file in layout.evaluated_files(run)))
