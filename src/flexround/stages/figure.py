"""Draw one figure of the paper as PDF and PNG."""

import argparse
from pathlib import Path

from flexround import artifacts
from flexround.errors import SettingsError, suggest
from flexround.results import published
from flexround.results.render import figure_style, figures
from flexround.settings import layout
from flexround.settings.load import Params, load_params
from flexround.settings.plan import Plan
from flexround.settings.tables import Panel
from flexround.stages import cli
from flexround.tasks import protocol


def parser() -> argparse.ArgumentParser:
    """Return the command line of this stage."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    arguments.add_argument("--scale", default="mini", help="name of a file in params/scales, or a path to one")
    arguments.add_argument("--figure", type=int, required=True, help="number in the paper")
    arguments.add_argument("--out", type=Path, required=True, help="directory of the files")
    return arguments


def run(arguments: argparse.Namespace) -> None:
    """Run the stage."""
    params = load_params(arguments.scale)
    plan, number = Plan(params), arguments.figure
    if number not in plan.figures:
        raise SettingsError(f"--figure {suggest(str(number), map(str, plan.figures))}")
    scale = params.scale
    if number == params.figures.sample_size.number:
        drawn = figures.figure7(_accuracies(plan), published.load_figure7(), scale.name)
    else:
        panels = [_shifts(params, panel) for panel in params.figures.shifts[number]]
        if number == 3:
            drawn = figures.figure3(panels, scale.figures.large_weight, scale.name)
        elif number == 4:
            drawn = figures.figure4(panels[0], scale.name)
        elif number == 5:
            drawn = figures.figure5(panels[0], scale.name)
        else:
            drawn = figures.figure6(panels, scale.name)
    figure_style.save(drawn, arguments.out / f"figure{number}")


def _shifts(params: Params, panel: Panel) -> figures.Shifts:
    """Read the weight, the learned and the nearest codes of one panel."""
    from flexround.reconstruct import network
    from flexround.reconstruct.grid_shifts import weight_codes

    run = layout.Run(params.scale.name, panel.task, panel.checkpoint, panel.recipe, 0)
    weights = Path(layout.checkpoint_dir(run.scale, run.task, run.checkpoint))
    head = protocol.named(params.scale, panel.task).head
    steps = params.recipe(panel.recipe).preprocess
    model = network.prepared(params.checkpoint(panel.checkpoint), head, weights, steps)
    weight = model.get_submodule(panel.module).weight.detach().numpy()  # type: ignore[operator]
    codes = weight_codes(Path(layout.quantized_dir(run)), panel.module, weight)
    return figures.Shifts(panel.title, weight.ravel(), codes.learned, codes.nearest)


def _accuracies(plan: Plan) -> list[figures.Accuracies]:
    """Read the accuracies of figure 7: one value per seed at each method and calibration size."""
    spec = plan.params.figures.sample_size
    found = []
    for method in spec.recipes:
        for size in plan.scale.figures.sample_sizes:
            recipe = spec.recipe(method, size)
            seeds = plan.scale.figures.sample_size_seeds
            runs = plan.trials(spec.task, spec.checkpoint, recipe, seeds)
            paths = [Path(layout.evaluated_dir(run)) / "metrics.json" for run in runs]
            values = tuple(artifacts.read_json(path)["metrics"][spec.metric] for path in paths)
            found.append(figures.Accuracies(method, size, values))
    return found


if __name__ == "__main__":
    cli.main(run, parser())
