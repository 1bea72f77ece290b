"""Show the cost of a table or figure before anything is computed: jobs, missing files, bytes, GPU-hours."""

import argparse
import math
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from flexround.errors import SettingsError, look_up, suggest
from flexround.results.render import overview
from flexround.settings import user_rows
from flexround.settings.plan import Output, Plan
from flexround.tasks import protocol
from flexround.tools import cli, cost

GIB = 2**30
STEPS = ("finetune", "gate", "reconstruct", "choice", "evaluate")  # stages that need GPU-hours
COUNTED = ("data", "finetune", "gate", "calibrate", "reconstruct", "evaluate")


def parser() -> argparse.ArgumentParser:
    """Return the command line of this program."""
    arguments = cli.parser(__doc__)
    arguments.set_defaults(scale="paper")
    wanted = arguments.add_mutually_exclusive_group(required=True)
    wanted.add_argument("--table", type=int, help="number in the paper")
    wanted.add_argument("--figure", type=int, help="number in the paper, instead of a table")
    wanted.add_argument("--all", action="store_true", help="every table and figure of the scale, each run once")
    arguments.add_argument("--seeds", type=int, help="trials of every quantized run; those of its task if not given")
    arguments.add_argument("--checkpoints", help="names joined by commas, of which alone cells are made")
    arguments.add_argument("--own", metavar="FILE", help="your recipes and rows, as in --config own=FILE")
    return arguments


def run(arguments: argparse.Namespace) -> None:
    """Print the plan."""
    params = user_rows.configured(arguments.scale, arguments.own)
    plan = Plan(params, {"seeds": arguments.seeds, "checkpoints": arguments.checkpoints})
    tables, figures = plan.complete_tables(), plan.complete_figures()
    if not arguments.all:
        tables, figures = ([n] if n is not None else [] for n in (arguments.table, arguments.figure))
    for name, numbers, known in (("table", tables, plan.params.tables), ("figure", figures, plan.figures)):
        if unknown := [n for n in numbers if n not in known]:
            raise SettingsError(f"--{name} {suggest(str(unknown[0]), map(str, known))}")
    for line in _report(plan, planned(plan, tables, figures)):
        sys.stdout.write(f"{line}\n")


def planned(plan: Plan, tables: Iterable[int], figures: Iterable[int]) -> dict[Output, str]:
    """Return each output of tables and figures -> the family of the table that shows it first."""
    found: dict[tuple[str, str], tuple[Output, str]] = {}
    for name, runs, evaluated in plan.shown(tables, figures):
        for run in runs:
            family = "Figures" if name.startswith("figure") else overview.family_of([run.task, run.checkpoint])
            for output in plan.outputs(run, evaluated):
                found.setdefault((output.step, output.place), (output, family))
    return dict(found.values())


def _report(plan: Plan, everything: dict[Output, str]) -> Iterator[str]:
    names = list(dict.fromkeys(job.run.task for job in everything))
    seeds = " or ".join(map(str, sorted({plan.seeds(name) for name in names})))
    yield f"scale {plan.scale.name}: {plan.scale.description}; {seeds} seed(s) per quantized run"
    yield "jobs by stage:"
    for step in COUNTED:
        done = [job.done for job in everything if job.step == step]
        yield f"  {step:<12}{len(done):>5}   already on disk: {sum(done)}"
    yield from _missing(plan, list(dict.fromkeys(job.run.checkpoint for job in everything)), names)
    if plan.scale.comparable:  # the hours hold for the paper's data
        yield from _costs(plan, everything)
    else:
        jobs = [job for job in everything if job.step in STEPS and not job.done]
        known = [seconds for job in jobs if (seconds := plan.seconds(job.step, job.run))]
        if known:
            minutes = math.ceil(sum(known) / 60)
            yield f"about {minutes} minutes of one core for {len(known)} of {len(jobs)} jobs that are not done"


def _missing(plan: Plan, checkpoints: list[str], names: list[str]) -> Iterator[str]:
    """Yield the pinned inputs that are not on disk, with their size if it is known."""
    wanted = [key for name in checkpoints for key in plan.params.checkpoint(name).sources]
    wanted += [key for name in names for key in plan.scale.tasks[name].sources]
    lines: list[str] = []
    total = unknown = 0
    for source in (plan.params.sources[key] for key in dict.fromkeys(wanted)):
        if not source.inside and not (Path("results/sources") / source.file).exists():
            total, unknown = total + (source.bytes or 0), unknown + (not source.bytes)
            size = f" ({source.bytes / 2**20:.0f} MB)" if source.bytes else ""
            lines.append(f"  results/sources/{source.file}{size} from {source.location}")
    for name in names:
        root, sources = plan.scale.tasks[name].options.get("root"), plan.scale.tasks[name].sources
        if root and not sources and not (Path("results/sources") / root).exists():
            lines.append(f"  results/sources/{root}/ with train/ and val/ for task {name}: see params/sources.yaml")
    said = f", {total / 2**20:.0f} MB to download" if total else ""
    said += f"; params/sources.yaml has no size of {unknown}" if unknown else ""
    yield f"missing on disk: {len(lines) or 'nothing'}{said}"
    yield from lines


def _networks(plan: Plan, jobs: list[Output]) -> dict[tuple[str, str], cost.NetworkCost]:
    """Return the network of each task and checkpoint; networks with equal shapes are counted once."""
    counted: dict[tuple[object, ...], cost.NetworkCost] = {}
    found = {}
    for pair in dict.fromkeys(job.pair for job in jobs):
        task, checkpoint = protocol.named(plan.scale, pair[0]), plan.params.checkpoint(pair[1])
        key = checkpoint.model.model_dump_json(), task.input_shape, task.head.get("head")
        if key not in counted:
            counted[key] = cost.network(checkpoint, task)
        found[pair] = counted[key]
    return found


def _need(plan: Plan, job: Output, network: cost.NetworkCost) -> cost.Need:
    task, params, size = job.run.task, plan.params, look_up("sizes:", plan.scale.sizes, job.run.task)
    checkpoint, recipe = params.checkpoint(job.run.checkpoint), params.recipe(job.run.recipe)
    if job.step == "finetune":
        return cost.training(size, network, params.train(*job.pair), checkpoint.streamed)
    if job.step == "reconstruct":
        return cost.reconstruction(size, network, recipe, plan.hyper(job.run)[0])
    rows = len(recipe.select) * plan.scale.tasks[task].options.get("heldout", 0) if job.step == "choice" else None
    if job.step == "gate" and params.gate(*job.pair).options:
        rows = size.gate
    return cost.evaluation(size, network, checkpoint.evaluated, rows)


def _costs(plan: Plan, everything: dict[Output, str]) -> Iterator[str]:
    """Yield estimated GPU-hours and bytes on disk."""
    jobs = [job for job in everything if job.step in STEPS and not job.done]
    networks = _networks(plan, jobs)
    needs = {job: _need(plan, job, networks[job.pair]) for job in jobs}
    yield "estimated A100 hours of what is not done (rates: params/bill.yaml):"
    yield from _by_step({job: need.seconds / 3600 for job, need in needs.items()}, everything)
    if needs:
        longest = max(needs, key=lambda job: needs[job].seconds)
        yield f"longest job: {longest.step} {longest.place}, {needs[longest].seconds / 3600:.2f} h"
    weights, quantized = (
        sum(need.disk for job, need in needs.items() if job.step == step) / GIB for step in ("finetune", "reconstruct")
    )
    drawn = [job.run for job in everything if job.step == "calibrate" and not job.done]
    shapes = {run.task: protocol.named(plan.scale, run.task).input_shape for run in drawn}
    samples = sum(plan.hyper(run)[0].samples * math.prod(shapes[run.task]) for run in drawn) / GIB  # one byte per pixel
    yield (
        f"on disk: checkpoints {weights:.1f} GiB, samples {samples:.1f} GiB, "
        f"quantized networks {quantized:.1f} GiB (packed codes)"
    )


def _by_step(hours: dict[Output, float], family: dict[Output, str]) -> Iterator[str]:
    """Yield hours by stage and by family of tables."""
    families = list(dict.fromkeys(family[job] for job in hours))
    rows = {
        step: [sum(hours[job] for job in hours if (job.step, family[job]) == (step, name)) for name in families]
        for step in STEPS
        if any(hours[job] for job in hours if job.step == step)
    }
    rows["together"] = [sum(column) for column in zip(*rows.values(), strict=True)]
    yield "  ".join([f"  {'by stage':<20}", *(f"{family:>18}" for family in families), f"{'together':>10}"])
    for step, row in rows.items():
        unit = " h" if step == "together" else ""
        yield "  ".join([f"  {step:<20}", *(f"{value:>18.2f}" for value in row), f"{sum(row):>10.2f}{unit}"])


if __name__ == "__main__":
    cli.main(run, parser())
