"""The job that draws one figure: grid shifts, accuracies against calibration size, or accuracies against bits."""

from pathlib import Path

from pydantic import Field

from flexround.jobs import shared
from flexround.jobs.jobfile import Plan, Planned, network
from flexround.jobs.shared import RESULTS, ShowingJob
from flexround.results import sample_sizes
from flexround.results.sample_sizes import Sizes
from flexround.settings import layout
from flexround.settings.layout import Run
from flexround.settings.schema import Checkpoint, Count, Positive, Strict, TaskSpec
from flexround.settings.tables import ByBits, GridShifts, Panel, SampleSize, Table


class Shift(Strict):
    """One weight whose grid shifts are drawn, and where its networks lie."""

    panel: Panel
    task: TaskSpec
    checkpoint: Checkpoint
    steps: tuple[str, ...] = Field(description="surgery before quantization")
    weights: Path
    quantized: Path


class FigureJob(ShowingJob):
    """Draw one figure."""

    number: Count
    title: str
    large_weight: Positive | None = Field(description="that parts the histograms beside grid shifts, if it has any")
    shifts: tuple[Shift, ...]
    sizes: Sizes | None
    by_bits: Table | None


def resolve(plan: Plan, number: int) -> Planned:
    """Plan a figure of its networks or of its evaluations."""
    spec = plan.params.figures[number]
    shifts = [_shift(plan, panel) for panel in spec.panels] if isinstance(spec, GridShifts) else []
    histograms = isinstance(spec, GridShifts) and spec.histograms
    table = plan.params.tables[spec.table] if isinstance(spec, ByBits) else None
    job = FigureJob(
        **shared.showing(plan, [table] if table else []),
        number=number,
        title=f"Figure {number}. {spec.title}",
        large_weight=plan.scale.figures.large_weight if histograms else None,
        shifts=shifts,
        sizes=sample_sizes.of(plan) if isinstance(spec, SampleSize) else None,
        by_bits=table,
        out=RESULTS / plan.scale.name / f"figure{number}.pdf",
    )
    networks = [network for shift in shifts for network in (shift.weights, shift.quantized)]
    models = [shift.checkpoint.model for shift in shifts]
    code = {target for model in models for target in (model.factory, model.equalization) if target}
    code |= {shift.task.module for shift in shifts}
    return Planned(job, networks or shared.evaluated(plan.figure_runs(number)), tuple(sorted(code)))


def _shift(plan: Plan, panel: Panel) -> Shift:
    run = Run(plan.scale.name, panel.task, panel.checkpoint, panel.recipe, 0)
    known = network(plan, panel.task, panel.checkpoint)
    return Shift(
        panel=panel,
        task=known["task"],
        checkpoint=known["checkpoint"],
        steps=plan.params.recipe(panel.recipe).preprocess,
        weights=Path(layout.checkpoint_dir(run.scale, run.task, run.checkpoint)),
        quantized=Path(layout.quantized_dir(run)),
    )
