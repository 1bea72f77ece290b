"""Draw one figure of the paper as PDF and PNG."""

import argparse
import itertools

from flexround.jobs import jobfile
from flexround.jobs.figure import Bits, FigureJob, Shift
from flexround.jobs.shared import RESULTS, Sizes
from flexround.machine import provenance
from flexround.reconstruct import codes, network
from flexround.results import cells
from flexround.results.render import by_bits, figure_style, figures
from flexround.settings.layout import Run
from flexround.tasks import protocol


def run(arguments: argparse.Namespace) -> None:
    """Run the stage."""
    job = jobfile.read(FigureJob, arguments.job)
    if job.by_bits is not None:
        drawn = by_bits.draw(_by_bits(job.by_bits, job.scale), job.number, job.scale)
    elif job.sizes is not None:
        drawn = figures.figure7(_accuracies(job.sizes, job.scale), list(job.sizes.points), job.where, job.scale)
    else:
        panels = [_shifts(shift) for shift in job.shifts]
        if job.number == 3:
            drawn = figures.figure3(panels, job.large_weight, job.where, job.scale)
        elif job.number == 4:
            drawn = figures.figure4(panels[0], job.where, job.scale)
        elif job.number == 5:
            drawn = figures.figure5(panels[0], job.where, job.scale)
        else:
            drawn = figures.figure6(panels, job.where, job.scale)
    figure_style.save(drawn, job.out / f"figure{job.number}")


def _shifts(shift: Shift) -> figures.Shifts:
    """Read the weight, the learned and the nearest codes of one panel."""
    for directory in (shift.weights, shift.quantized):
        provenance.manifest(directory, verify=False)
    head = protocol.build(shift.task).head
    model = network.prepared(shift.checkpoint, head, shift.weights, shift.steps)
    weight = model.get_submodule(shift.panel.module).weight.detach()  # type: ignore[operator]
    learned, nearest = codes.learned_and_nearest(shift.quantized, shift.panel.module, weight)
    return figures.Shifts(shift.panel.title, *(x.flatten().numpy() for x in (weight, learned, nearest)))


def _by_bits(shown: Bits, scale: str) -> list[by_bits.Point]:
    """Read the values of each row of a table that is compared, and of full precision."""
    found = []
    for cell in cells.collect(shown.table, shown.recipes, scale, shown.seeds, RESULTS):
        recipe = shown.recipes[cell.run.recipe]
        if cell.compare or not recipe.quantized:
            values = tuple(trial.value for trial in cell.trials)
            found.append(by_bits.Point(cell.key.column, cell.key.method, recipe.w_bits, values))
    return found


def _accuracies(shown: Sizes, scale: str) -> list[figures.Accuracies]:
    """Read the accuracies of figure 7: one value per seed at each method and calibration size."""
    spec = shown.spec
    accuracies = []
    for method, size in itertools.product(spec.recipes, shown.sizes):
        run = Run(scale, spec.task, spec.checkpoint, spec.recipe(method, size), 0)
        trials = cells.trials_of(run, [spec.metric], shown.seeds, RESULTS)[spec.metric]
        accuracies.append(figures.Accuracies(method, size, tuple(trial.value for trial in trials)))
    return accuracies
