"""Draw one figure of the paper as PDF and PNG."""

import argparse
from collections.abc import Collection

import pandas

from flexround.errors import InputError
from flexround.io import artifacts
from flexround.jobs.tables import RESULTS, FigureJob, Shift
from flexround.reconstruct import codes, network
from flexround.results import cells, sample_sizes
from flexround.results.render import budgets, curves, figure_style, shifts
from flexround.results.render.curves import Axis, CurvePoint
from flexround.results.sample_sizes import Sizes
from flexround.settings.tables import Budgets, GridShifts, Table
from flexround.tasks import protocol


def figure(arguments: argparse.Namespace) -> None:
    """Draw one figure of the paper as PDF and PNG."""
    job = FigureJob.read(arguments.job)
    spec, scale = job.spec, job.scale.name
    title = f"Figure {spec.number}. {spec.title}"
    if isinstance(spec, Budgets):
        points = budgets.collect(spec, scale, RESULTS)
        table = pandas.DataFrame(points).to_csv(index=False, float_format="%.4f")
        artifacts.write_text(job.out.with_suffix(".csv"), table)
        drawn = budgets.draw(points, title, scale)
    elif job.by_bits is not None:
        drawn = curves.draw(_by_bits(job, job.by_bits), Axis("bits of the weights"), title, scale)
    elif job.sizes is not None:
        axis = Axis("calibration samples", "top-1 accuracy (%)", sizes=True)
        drawn = curves.draw(_sizes(job, job.sizes), axis, title, scale)
    else:
        large = job.large_weight if isinstance(spec, GridShifts) and spec.histograms else None
        drawn = shifts.draw(list(map(_shifts, job.shifts)), title, scale, large)
    figure_style.save(drawn, job.out, job.out.with_suffix(".png"))


def _shifts(shift: Shift) -> shifts.Shifts:
    """Read one panel's weight, learned codes and nearest codes."""
    head = protocol.build(shift.task).head
    model = network.prepared(shift.checkpoint, head, shift.weights, shift.steps)
    weight = model.get_submodule(shift.panel.module).weight.detach()  # type: ignore[operator]
    learned, nearest = codes.learned_and_nearest(shift.quantized, shift.panel.module, weight)
    weights, moved, rounded = (x.flatten().numpy() for x in (weight, learned, nearest))
    return shifts.Shifts(shift.panel.title, weights, moved, rounded, shift.panel.method, shift.panel.paper)


def _by_bits(job: FigureJob, table: Table) -> list[CurvePoint]:
    """Return the values of each compared row of a table, and of full precision; each column is a panel."""
    found: list[tuple[str, str, int | None, list[float]]] = []
    for cell in cells.collect(table, job.scope):
        recipe = job.recipes[cell.run.recipe]
        if cell.compare or not recipe.quantized:
            values = [trial.value for trial in cell.trials]
            found.append((cell.key.column, cell.key.method, recipe.w_bits, values))
    _refuse_missing(job, [values for *_, values in found])
    seeds = curves.seeds([values for *_, bits, values in found if bits is not None])
    return [
        curves.of_seeds(f"{network} (dashed: full precision)\n{seeds}", method, str(bits or ""), values)
        for network, method, bits, values in found
    ]


def _sizes(job: FigureJob, shown: Sizes) -> list[CurvePoint]:
    """Return each method's accuracies at each calibration size, and the paper's points if any."""
    found = sample_sizes.values(shown, job.scale.name, RESULTS)
    _refuse_missing(job, found.values())
    ours = f"ours: {curves.seeds(list(found.values()))}"
    points = [curves.of_seeds(ours, method, str(size), values) for (method, size), values in found.items()]
    paper = "the paper, on ImageNet: value and spread"
    return points + [CurvePoint(paper, p.method, str(p.size), p.value, p.spread) for p in shown.points]


def _refuse_missing(job: FigureJob, points: Collection[list[float]]) -> None:
    if not points or not all(points):
        raise InputError(
            f"figure {job.spec.number}: a row without an evaluated run; evaluate all runs that it shows first"
        )
