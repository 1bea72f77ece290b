"""The jobs of what is shown: their files, and what Snakemake asks of them. No torch here."""

import dataclasses
from collections.abc import Iterable
from pathlib import Path

from pydantic import Field

from flexround.jobs.jobfile import Job
from flexround.jobs.resolve import Inputs, code, network, numbered, write
from flexround.results import paper_numbers, settings_table
from flexround.results.claims import specs, verdicts
from flexround.results.claims.specs import Claims
from flexround.results.paper_numbers import Key, Point
from flexround.settings import layout
from flexround.settings.layout import PARAMS, ROOT, Run
from flexround.settings.plan import Plan
from flexround.settings.schema import Checkpoint, Count, Positive, Recipe, ScaleFacts, Strict, Task
from flexround.settings.tables import Panel, SampleSize, Table

RESULTS = Path("results")
TEMPLATES = Path("src/flexround/results/render/templates")  # code too, but not Python
Numbers = tuple[tuple[Key, float], ...]


class TabulateJob(Job):
    """Make one table."""

    table: Table
    scale: ScaleFacts
    seeds: dict[str, Count] = Field(description="of a complete quantized cell, by task")
    selected: tuple[str, ...] | None = Field(None, description="checkpoints whose cells are made; none: all")
    recipes: dict[str, Recipe] = Field(description="of the rows")
    numbers: Numbers = Field(description="that the paper prints in this table")
    settings: tuple[float, ...] = Field(description="cells of a table of settings")
    evaluated: Path = Field(RESULTS, description="holds SCALE/evaluated")
    out: Path


class Sizes(Strict):
    """Accuracy against calibration size: figure 7."""

    spec: SampleSize
    points: tuple[Point, ...] = Field(description="of the paper")
    sizes: tuple[Count, ...]
    seeds: Count


class Shift(Strict):
    """One weight whose grid shifts are drawn, and where its networks lie."""

    panel: Panel
    task: Task
    checkpoint: Checkpoint
    steps: tuple[str, ...] = Field(description="surgery before quantization")
    weights: Path
    quantized: Path


class Bits(Strict):
    """Accuracy against bits: a table, and what its cells are collected by."""

    table: Table
    recipes: dict[str, Recipe]
    seeds: dict[str, Count]


class FigureJob(Job):
    """Draw one figure: grid shifts, accuracies against calibration size, or accuracies against bits."""

    number: Count
    where: str = Field(description="the layer or network that it shows")
    scale: str
    large_weight: Positive
    shifts: tuple[Shift, ...]
    sizes: Sizes | None
    by_bits: Bits | None
    out: Path


class ClaimsJob(Job):
    """Judge the paper's claims."""

    tables: tuple[Table, ...]
    scale: ScaleFacts
    seeds: dict[str, Count]
    selected: tuple[str, ...] | None = None
    recipes: dict[str, Recipe]
    numbers: Numbers
    bold: tuple[Key, ...]
    budgets: dict[str, int]
    claims: Claims
    sizes: Sizes
    evaluated: Path = RESULTS
    out: Path


class SummaryJob(Job):
    """Sum up the tables."""

    tables: tuple[Path, ...]
    out: Path


class Shown:
    """The jobs of what a plan shows. Each method writes a job file and returns the inputs of its rule, by name."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.params, self.scale = plan, plan.params, plan.scale
        self.out = Path("results") / self.scale.name
        self.facts = ScaleFacts(**{name: getattr(self.scale, name) for name in ScaleFacts.model_fields})

    def tabulate(self, number: int) -> Inputs:
        """Make one table."""
        table = self.params.tables[number]
        templates = _templates("table")
        job = write(
            TabulateJob,
            self.out / f"{table.name}.csv",
            code("tabulate", files=tuple(templates.values())),
            table=table,
            scale=self.facts,
            seeds=self._seeds([table]),
            selected=self.plan.selected,
            recipes=self._recipes([table]),
            numbers=tuple((key, value) for key, value in self._numbers() if key.table == number),
            settings=tuple(settings_table.resolve(table, self.params)) if table.settings else (),
            out=self.out,
        )
        runs = [] if table.settings else self.plan.table_runs(number)
        return job | templates | _evaluated(runs)

    def figure(self, number: int) -> Inputs:
        """Draw one figure."""
        panels = self.params.figures.shifts.get(number, ())
        shifts = tuple(map(self._shift, panels))
        models = [shift.checkpoint.model for shift in shifts]
        targets = {target for model in models for target in (model.factory, model.equalization) if target}
        job = write(
            FigureJob,
            self.out / f"figure{number}.pdf",
            code("figure", *sorted(targets | {shift.task.module for shift in shifts})),
            number=number,
            where=self.params.figures.where[number],
            scale=self.scale.name,
            large_weight=self.scale.figures.large_weight,
            shifts=shifts,
            sizes=self._sizes() if number == self.params.figures.sample_size.number else None,
            by_bits=self._by_bits(number),
            out=self.out,
        )
        inputs = _evaluated([] if shifts else self.plan.figure_runs(number))
        inputs |= numbered("weights", (str(shift.weights) for shift in shifts))
        inputs |= numbered("quantized", (str(shift.quantized) for shift in shifts))
        return job | inputs

    def claims(self) -> Inputs:
        """Judge the paper's claims by all complete tables and figure 7."""
        tables, templates = tuple(table for table in self.params.tables.values() if table.groups), _templates("claims")
        job = write(
            ClaimsJob,
            self.out / "claims.csv",
            code("claims", files=tuple(templates.values())),
            tables=tables,
            scale=self.facts,
            seeds=self._seeds(tables),
            selected=self.plan.selected,
            recipes=self._recipes(tables),
            numbers=self._numbers(),
            bold=tuple(sorted(paper_numbers.load_bold())) if self.scale.shows.published else (),
            budgets=self._budgets(),
            claims=specs.load(PARAMS / self.scale.shows.claims),
            sizes=self._sizes(),
            out=self.out,
        )
        number = self.params.figures.sample_size.number
        complete = [number for number in self.plan.complete_tables() if self.params.tables[number].groups]
        runs = [run for table in complete for run in self.plan.table_runs(table)]
        runs += self.plan.figure_runs(number) if number in self.plan.complete_figures() else []
        return job | templates | _evaluated(runs)

    def summary(self) -> Inputs:
        """Sum up the complete tables."""
        names = [self.params.tables[number].name for number in self.plan.complete_tables()]
        tables = [str(self.out / f"{name}.csv") for name in names]
        return write(SummaryJob, self.out / "metrics.json", code("summary"), tables=tables) | numbered("table", tables)

    def _numbers(self) -> Numbers:
        """Return the published numbers of what the scale shows."""
        return tuple(paper_numbers.load().items()) if self.scale.shows.published else ()

    def _recipes(self, tables: Iterable[Table]) -> dict[str, Recipe]:
        """Return the recipes of the rows of tables."""
        return {row.recipe: self.params.recipe(row.recipe) for table in tables for row in table.rows()}

    def _seeds(self, tables: Iterable[Table]) -> dict[str, int]:
        """Return the seeds of a complete cell of each task of tables."""
        return {task: self.plan.seeds(task) for table in tables for task, _ in table.pairs()}

    def _budgets(self) -> dict[str, int]:
        """Return a block's iterations in each run that claims may compare; what is chosen has its candidates' sum."""
        runs = [run for number in self.plan.complete_tables() for run in self.plan.table_runs(number)]
        runs += [run for number in self.plan.complete_figures() for run in self.plan.figure_runs(number)]
        return {verdicts.budget_key(run): self._iterations(run) for run in runs if self._quantized(run)}

    def _quantized(self, run: Run) -> bool:
        return self.params.recipe(run.recipe).quantized

    def _iterations(self, run: Run) -> int:
        """Return the iterations of a block for the weights, of all recipes that a run is the best of."""
        tried = self.params.recipe(run.recipe).select or (run.recipe,)
        return sum(self.plan.hyper(dataclasses.replace(run, recipe=recipe))[0].iters for recipe in tried)

    def _sizes(self) -> Sizes:
        """Return what figure 7 shows."""
        figures = self.scale.figures
        return Sizes(
            spec=self.params.figures.sample_size,
            points=tuple(paper_numbers.load_figure7()) if self.scale.shows.published else (),
            sizes=figures.sample_sizes,
            seeds=figures.sample_size_seeds,
        )

    def _by_bits(self, number: int) -> Bits | None:
        """Return what a figure shows of a table, if it does."""
        spec = self.params.figures.by_bits
        if spec is None or number != spec.number:
            return None
        table = self.params.tables[spec.table]
        return Bits(table=table, recipes=self._recipes([table]), seeds=self._seeds([table]))

    def _shift(self, panel: Panel) -> Shift:
        """Return one weight with its networks."""
        run = Run(self.scale.name, panel.task, panel.checkpoint, panel.recipe, 0)
        return Shift(
            panel=panel,
            steps=self.params.recipe(panel.recipe).preprocess,
            weights=Path(layout.checkpoint_dir(run.scale, run.task, run.checkpoint)),
            quantized=Path(layout.quantized_dir(run)),
            **network(self.params, panel.task, panel.checkpoint),
        )


def _templates(page: str) -> Inputs:
    """Return the templates of an output."""
    shared = {"base.html", "marks.html", "style.css"}
    names = sorted(path.name for path in (ROOT / TEMPLATES).iterdir() if path.stem == page or path.name in shared)
    return numbered("template", (str(TEMPLATES / name) for name in names))


def _evaluated(runs: Iterable[Run]) -> Inputs:
    """Return the evaluations that something is made of."""
    return numbered("of", dict.fromkeys(file for run in runs for file in layout.evaluated_files(run)))
