"""The jobs of what is shown: their files, and what Snakemake asks of them. No torch here."""

from collections.abc import Iterable
from pathlib import Path

from pydantic import Field

from flexround.jobs.jobfile import Job
from flexround.jobs.resolve import Inputs, code, made, network, write
from flexround.results import published, settings_table
from flexround.results.claims import specs
from flexround.results.claims.specs import Claims
from flexround.results.published import Key, Point
from flexround.settings import layout
from flexround.settings.layout import ROOT, Run
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


class FigureJob(Job):
    """Draw one figure: grid shifts, or accuracies against calibration size."""

    number: Count
    scale: str
    large_weight: Positive
    shifts: tuple[Shift, ...]
    sizes: Sizes | None
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
        job = made(
            TabulateJob,
            table=table,
            scale=self.facts,
            seeds=self._seeds([table]),
            selected=self.plan.selected,
            recipes=self._recipes([table]),
            numbers=tuple((key, value) for key, value in published.load().items() if key.table == number),
            settings=tuple(settings_table.resolve(table, self.params)) if table.settings else (),
            out=self.out,
        )
        runs = [] if table.settings else self.plan.table_runs(number)
        return write(self.out / f"table{number}.csv", job) | code("tabulate") | _templates("table") | _evaluated(runs)

    def figure(self, number: int) -> Inputs:
        """Draw one figure."""
        panels = self.params.figures.shifts.get(number, ())
        shifts = tuple(map(self._shift, panels))
        job = made(
            FigureJob,
            number=number,
            scale=self.scale.name,
            large_weight=self.scale.figures.large_weight,
            shifts=shifts,
            sizes=None if shifts else self._sizes(),
            out=self.out,
        )
        inputs = _evaluated([] if shifts else self.plan.figure_runs(number))
        for i, shift in enumerate(shifts):
            inputs |= {f"weights_{i}": str(shift.weights), f"quantized_{i}": str(shift.quantized)}
        targets = {target for shift in shifts for target in _targets(shift)}
        return write(self.out / f"figure{number}.pdf", job) | code("figure", *sorted(targets)) | inputs

    def claims(self) -> Inputs:
        """Judge the paper's claims by all complete tables and figure 7."""
        tables = tuple(table for table in self.params.tables.values() if table.groups)
        job = made(
            ClaimsJob,
            tables=tables,
            scale=self.facts,
            seeds=self._seeds(tables),
            selected=self.plan.selected,
            recipes=self._recipes(tables),
            numbers=tuple(published.load().items()),
            bold=tuple(sorted(published.load_bold())),
            claims=specs.load(),
            sizes=self._sizes(),
            out=self.out,
        )
        number = self.params.figures.sample_size.number
        complete = [number for number in self.plan.complete_tables() if self.params.tables[number].groups]
        runs = [run for table in complete for run in self.plan.table_runs(table)]
        runs += self.plan.figure_runs(number) if number in self.plan.complete_figures() else []
        return write(self.out / "claims.csv", job) | code("claims") | _templates("claims") | _evaluated(runs)

    def summary(self) -> Inputs:
        """Sum up the complete tables."""
        tables = [self.out / f"table{number}.csv" for number in self.plan.complete_tables()]
        out = self.out / "metrics.json"
        inputs = {f"table_{i}": str(path) for i, path in enumerate(tables)}
        return write(out, SummaryJob(tables=tuple(tables), out=out)) | code("summary") | inputs

    def _recipes(self, tables: Iterable[Table]) -> dict[str, Recipe]:
        """Return the recipes of the rows of tables."""
        return {row.recipe: self.params.recipe(row.recipe) for table in tables for row in table.rows()}

    def _seeds(self, tables: Iterable[Table]) -> dict[str, int]:
        """Return the seeds of a complete cell of each task of tables."""
        return {task: self.plan.seeds(task) for table in tables for task, _ in table.pairs()}

    def _sizes(self) -> Sizes:
        """Return what figure 7 shows."""
        figures = self.scale.figures
        return Sizes(
            spec=self.params.figures.sample_size,
            points=tuple(published.load_figure7()),
            sizes=figures.sample_sizes,
            seeds=figures.sample_size_seeds,
        )

    def _shift(self, panel: Panel) -> Shift:
        """Return one weight with its networks."""
        run = Run(self.scale.name, panel.task, panel.checkpoint, panel.recipe, 0)
        settings = network(self.params, panel.task, panel.checkpoint)
        return Shift.model_validate(
            {
                "panel": panel,
                "steps": self.params.recipe(panel.recipe).preprocess,
                "weights": layout.checkpoint_dir(run.scale, run.task, run.checkpoint),
                "quantized": layout.quantized_dir(run),
                **settings,
            }
        )


def _templates(page: str) -> Inputs:
    """Return the templates of an output."""
    shared = {"base.html", "marks.html", "style.css"}
    names = sorted(path.name for path in (ROOT / TEMPLATES).iterdir() if path.stem == page or path.name in shared)
    return {f"template_{i}": str(TEMPLATES / name) for i, name in enumerate(names)}


def _evaluated(runs: Iterable[Run]) -> Inputs:
    """Return the evaluations that something is made of."""
    files = {file: None for run in runs for file in layout.evaluated_files(run)}
    return {f"of_{i}": file for i, file in enumerate(files)}


def _targets(shift: Shift) -> list[str]:
    """Return the code that the settings of a shift's network name."""
    model = shift.checkpoint.model
    return [target for target in (model.factory, model.equalization, shift.task.module) if target]
