"""Say what a table or figure costs before anything is computed: jobs, missing files, bytes, GPU-hours."""

import argparse
import dataclasses
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import torch
from torch.utils.flop_counter import FlopCounterMode

from flexround import imports
from flexround.errors import SettingsError, suggest
from flexround.models import build
from flexround.settings import cost, layout
from flexround.settings.layout import Run
from flexround.settings.load import load_params
from flexround.settings.plan import Plan
from flexround.tasks import protocol
from flexround.tools import cli

GIB = 2**30


def parser() -> argparse.ArgumentParser:
    """Return the command line of this stage."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    arguments.add_argument("--scale", default="paper", help="name of a file in params/scales, or a path to one")
    wanted = arguments.add_mutually_exclusive_group(required=True)
    wanted.add_argument("--table", type=int, help="number in the paper")
    wanted.add_argument("--figure", type=int, help="number in the paper, instead of a table")
    arguments.add_argument("--seeds", type=int, help="trials of every quantized run; the scale's if not given")
    return arguments


def run(arguments: argparse.Namespace) -> None:
    """Run the stage."""
    plan = Plan(load_params(arguments.scale), arguments.seeds)
    runs = list(dict.fromkeys(_wanted(plan, arguments)))
    evaluated = [] if arguments.figure in plan.params.figures.shifts else runs
    sys.stdout.write("\n".join(_report(plan, runs, evaluated)) + "\n")


def _wanted(plan: Plan, arguments: argparse.Namespace) -> list[Run]:
    """Return the runs of the table or figure asked for."""
    if arguments.figure is not None:
        if arguments.figure not in plan.figures:
            raise SettingsError(f"--figure {suggest(str(arguments.figure), map(str, plan.figures))}")
        return plan.figure_runs(arguments.figure)
    if arguments.table not in plan.params.tables:
        raise SettingsError(f"--table {suggest(str(arguments.table), map(str, plan.params.tables))}")
    return plan.table_runs(arguments.table)


def _report(plan: Plan, runs: list[Run], evaluated: list[Run]) -> Iterator[str]:
    """Yield the lines of the report."""
    quantized = _reconstructed(plan, runs)
    pairs = list(dict.fromkeys((run.task, run.checkpoint) for run in runs))
    names = list(dict.fromkeys(task for task, _ in pairs))
    yield f"scale {plan.scale.name}: {plan.scale.description}; {plan.seeds} seed(s) per quantized run"
    yield from _jobs(plan, evaluated, quantized, pairs, names)
    yield from _missing(plan, list(dict.fromkeys(checkpoint for _, checkpoint in pairs)), names)
    yield from _costs(plan, quantized)


def _reconstructed(plan: Plan, runs: list[Run]) -> list[Run]:
    """Return the runs that are reconstructed for these, each once: what is chosen among others needs them all."""
    chosen = [(run, plan.params.recipe(run.recipe).select or (run.recipe,)) for run in runs]
    needed = dict.fromkeys(dataclasses.replace(run, recipe=name) for run, names in chosen for name in names)
    return [run for run in needed if plan.params.recipe(run.recipe).setting]


def _jobs(
    plan: Plan, evaluated: list[Run], quantized: list[Run], pairs: list[tuple[str, str]], names: list[str]
) -> Iterator[str]:
    """Yield the number of jobs of each stage, and how many of them are done."""
    stages = {
        "data": [layout.data_dir(plan.scale.name, name) for name in names],
        "finetune": [layout.checkpoint_dir(plan.scale.name, *pair) for pair in pairs],
        "gate": [layout.gate_file(plan.scale.name, *pair) for pair in dict.fromkeys(map(_pair, quantized))],
        "calibrate": list(dict.fromkeys(map(plan.samples_dir, quantized))),
        "reconstruct": list(map(layout.quantized_dir, quantized)),
        "evaluate": list(map(layout.evaluated_dir, evaluated)),
    }
    yield "jobs by stage:"
    for stage, directories in stages.items():
        inside = {"evaluate": "metrics.json", "gate": ""}.get(stage, "manifest.json")
        done = sum((Path(directory) / inside).exists() for directory in directories)
        yield f"  {stage:<12}{len(directories):>5}   already on disk: {done}"


def _pair(run: Run) -> tuple[str, str]:
    """Return the task and the checkpoint of a run."""
    return run.task, run.checkpoint


def _missing(plan: Plan, checkpoints: list[str], names: list[str]) -> Iterator[str]:
    """Yield which pinned inputs are not on disk, with what is known of their size."""
    wanted = [key for name in checkpoints for key in plan.params.checkpoint(name).sources]
    wanted += [key for name in names for key in plan.scale.tasks[name].sources]
    lines: list[str] = []
    total = 0
    for source in (plan.params.sources[key] for key in dict.fromkeys(wanted)):
        if not (Path("results/sources") / source.file).exists():
            total += source.bytes or 0
            size = f"{source.bytes / 2**20:.0f} MB" if source.bytes else "size not recorded"
            lines.append(f"  results/sources/{source.file} ({size}) from {source.location}")
    for name in names:
        root = plan.scale.tasks[name].options.get("root")
        if root and not (Path("results/sources") / root).exists():
            lines.append(f"  results/sources/{root}/ with train/ and val/ for task {name}: see params/sources.yaml")
    yield f"missing on disk: {len(lines) or 'nothing'}" + (f", {total / 2**20:.0f} MB to download" if total else "")
    yield from lines


def _costs(plan: Plan, quantized: list[Run]) -> Iterator[str]:
    """Yield estimated GPU-hours and bytes."""
    networks: dict[tuple[str, str], cost.Network] = {}
    seconds: dict[tuple[str, str], float] = defaultdict(float)
    cache = state = samples = 0
    for run in quantized:
        pair = run.task, run.checkpoint
        if pair not in networks:
            networks[pair] = measure(plan, run)
        network, settings = networks[pair], plan.hyper(run)[0]
        seconds[pair] += cost.reconstruction_seconds(network, plan.params.recipe(run.recipe), settings)
        cache = max(cache, cost.cache_bytes(network, settings))
        state = max(state, cost.state_bytes(network, settings))
        samples = max(samples, settings.samples)
    yield "reconstruction, estimated A100 hours (arithmetic at 40 % of TF32 peak or 4 ms a launched step, the larger):"
    for pair, total in seconds.items():
        network = networks[pair]
        yield f"  {'/'.join(pair):<40}{total / 3600:8.2f} h   {network.flop / 2e6:.0f} MMAC, {network.blocks} blocks"
    yield f"  {'together':<40}{sum(seconds.values()) / 3600:8.2f} h"
    yield f"per job: activation caches up to {cache / GIB:.2f} GiB, resume state on disk up to {state / GIB:.2f} GiB"


def measure(plan: Plan, run: Run) -> cost.Network:
    """Count a network's multiply-adds and its largest block boundary, without allocating its weights."""
    checkpoint, task = plan.params.checkpoint(run.checkpoint), protocol.named(plan.scale, run.task)
    for target in (checkpoint.model.factory, checkpoint.model.blocks):
        imports.load(target)  # torchvision can't be imported for the first time under a device context
    with torch.device("meta"), torch.no_grad(), FlopCounterMode(display=False) as counter:
        blocks = build.cut(checkpoint, build.architecture(checkpoint, task.head))
        x = torch.zeros(1, *task.input_shape, dtype=getattr(torch, task.input_dtype))
        largest = 0
        for block in blocks:
            x = block(block.before(x))
            largest = max(largest, x.numel())
    return cost.Network(counter.get_total_flops(), len(blocks), largest)


if __name__ == "__main__":
    cli.main(run, parser())
