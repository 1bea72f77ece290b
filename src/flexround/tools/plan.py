"""Say what a table or figure costs before anything is computed: jobs, missing files, bytes, GPU-hours."""

import argparse
import dataclasses
import functools
import json
import math
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from flexround import imports
from flexround.errors import SettingsError, suggest
from flexround.results.render import overview
from flexround.settings import additions, cost, layout
from flexround.settings.layout import Run
from flexround.settings.plan import Plan
from flexround.settings.schema import Stage
from flexround.tasks import protocol
from flexround.tools import cli, workload

GIB = 2**30


def parser() -> argparse.ArgumentParser:
    """Return the command line of this stage."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    arguments.add_argument("--scale", default="paper", help="name of a file in params/scales, or a path to one")
    wanted = arguments.add_mutually_exclusive_group(required=True)
    wanted.add_argument("--table", type=int, help="number in the paper")
    wanted.add_argument("--figure", type=int, help="number in the paper, instead of a table")
    wanted.add_argument("--all", action="store_true", help="every table and figure of the scale, each run once")
    arguments.add_argument("--seeds", type=int, help="trials of every quantized run; those of its task if not given")
    arguments.add_argument("--checkpoints", help="names joined by commas, of which alone cells are made")
    return arguments


def run(arguments: argparse.Namespace) -> None:
    """Run the stage."""
    plan = Plan(additions.configured(arguments.scale, None), arguments.seeds, checkpoints=arguments.checkpoints)
    tables, figures = _wanted(plan, arguments)
    families: dict[Run, str] = {}
    evaluated: dict[Run, None] = {}
    for number in tables:
        table = plan.params.tables[number]
        runs = [] if table.settings else plan.table_runs(number)
        families |= {run: overview.family(table) for run in runs if run not in families}
        evaluated |= dict.fromkeys(runs)
    for number in figures:
        runs = plan.figure_runs(number)
        families |= {run: "Figures" for run in runs if run not in families}
        evaluated |= {} if number in plan.params.figures.shifts else dict.fromkeys(runs)
    for line in _report(plan, families, list(evaluated), not arguments.all):
        sys.stdout.write(f"{line}\n")


def _wanted(plan: Plan, arguments: argparse.Namespace) -> tuple[list[int], list[int]]:
    """Return the tables and figures asked for."""
    if arguments.all:
        return plan.complete_tables(), plan.complete_figures()
    if arguments.figure is not None:
        if arguments.figure not in plan.figures:
            raise SettingsError(f"--figure {suggest(str(arguments.figure), map(str, plan.figures))}")
        return [], [arguments.figure]
    if arguments.table not in plan.params.tables:
        raise SettingsError(f"--table {suggest(str(arguments.table), map(str, plan.params.tables))}")
    return [arguments.table], []


def _report(plan: Plan, families: dict[Run, str], evaluated: list[Run], pairwise: bool) -> Iterator[str]:
    """Yield the lines of the report; ``families`` are those of the runs."""
    runs = list(families)
    quantized = _reconstructed(plan, runs)
    pairs = list(dict.fromkeys((run.task, run.checkpoint) for run in runs))
    names = list(dict.fromkeys(task for task, _ in pairs))
    seeds = " or ".join(map(str, sorted({plan.seeds(name) for name in names})))
    yield f"scale {plan.scale.name}: {plan.scale.description}; {seeds} seed(s) per quantized run"
    yield from _jobs(plan, evaluated, quantized, pairs, names)
    yield from _missing(plan, list(dict.fromkeys(checkpoint for _, checkpoint in pairs)), names)
    if plan.scale.comparable:  # the hours are those of the paper's data
        yield from _costs(plan, families, set(evaluated), pairwise)


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
    total = unknown = 0
    for source in (plan.params.sources[key] for key in dict.fromkeys(wanted)):
        if not source.inside and not (Path("results/sources") / source.file).exists():
            total, unknown = total + (source.bytes or 0), unknown + (not source.bytes)
            size = f" ({source.bytes / 2**20:.0f} MB)" if source.bytes else ""
            lines.append(f"  results/sources/{source.file}{size} from {source.location}")
    for name in names:
        root = plan.scale.tasks[name].options.get("root")
        if root and not (Path("results/sources") / root).exists():
            lines.append(f"  results/sources/{root}/ with train/ and val/ for task {name}: see params/sources.yaml")
    said = f", {total / 2**20:.0f} MB to download" if total else ""
    said += f"; params/sources.yaml has no size of {unknown}" if unknown else ""
    yield f"missing on disk: {len(lines) or 'nothing'}{said}"
    yield from lines


class Job(NamedTuple):
    """A job of the plan.

    Attributes:
        stage: what it does.
        family: of the table that shows it first.
        run: what it is of; a checkpoint's has full precision.
        seconds: on the GPU, by what they are for.
        memory: what it needs.
        done: whether its result is there.
    """

    stage: Stage
    family: str
    run: Run
    seconds: dict[str, float]
    memory: cost.Memory
    done: bool


class Estimates:
    """What the jobs of a plan cost; each network and each rounding is counted once."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.params = plan, plan.params
        self._networks: dict[tuple[object, ...], cost.Network] = {}
        self._roundings: dict[tuple[object, ...], cost.Rounded] = {}
        self._task = functools.cache(functools.partial(protocol.named, plan.scale))
        shown = [run for run in self.params.shown() if self.params.recipe(run[2]).setting]
        self._examples = {(task, checkpoint): name for task, checkpoint, name in reversed(shown)}

    def network(self, run: Run) -> cost.Network:
        """Return a run's network, at the batch and precision of its reconstruction."""
        recipe = self.params.recipe(run.recipe)
        name = run.recipe if recipe.setting else self._examples[_pair(run)]
        found, _ = self.plan.hyper(dataclasses.replace(run, recipe=name))
        checkpoint, task = self.params.checkpoint(run.checkpoint), self._task(run.task)
        how = found.batch, found.precision, self.params.recipe(name).a_bits is not None, found.fused
        key = checkpoint.model.model_dump_json(), *task.input_shape, task.head.get("head"), *how
        if key not in self._networks:
            self._networks[key] = workload.network(checkpoint, task, *how)
        return self._networks[key]

    def rounded(self, run: Run) -> cost.Rounded:
        """Return what a quantized run's rounding does to a weight."""
        recipe = self.params.recipe(run.recipe)
        found = self.plan.hyper(run)[0]
        how = found.w_granularity == "channel", found.precision, found.fused
        key = recipe.rounding, json.dumps(recipe.options), *how
        if key not in self._roundings:
            kind = imports.load(self.params.rounding_target(recipe.rounding or ""))
            self._roundings[key] = workload.rounding(kind, recipe.options, *how)
        return self._roundings[key]

    def finetune(self, run: Run, family: str) -> Job:
        """Return the job that makes a full-precision network."""
        network, settings = self.network(run), self.params.train(run.task, run.checkpoint)
        streamed = self.params.checkpoint(run.checkpoint).streamed
        done = _there(layout.checkpoint_dir(run.scale, run.task, run.checkpoint))
        if settings is None:
            held = (0 if streamed else 8 * network.parameters) + cost.bill().machine.process_gb * 1e9
            return Job("finetune", family, run, {}, cost.Memory(0, held, "ask for more memory (needs)"), done)
        seconds = {"fine-tuning": cost.training(run.task, network, settings)}
        return Job("finetune", family, run, seconds, cost.training_memory(network, settings, streamed), done)

    def reconstruct(self, run: Run, family: str) -> Job:
        """Return the job that quantizes a network."""
        network, rounded, (found, _) = self.network(run), self.rounded(run), self.plan.hyper(run)
        recipe, streamed = self.params.recipe(run.recipe), self.params.checkpoint(run.checkpoint).streamed
        seconds = cost.reconstruction(run.task, network, rounded, recipe, found)
        card = 1e6 * self.plan.resources("reconstruct", run.task, run.checkpoint).gpu_mb
        memory = cost.reconstruction_memory(network, rounded, recipe, found, streamed, card)
        return Job("reconstruct", family, run, seconds, memory, _there(layout.quantized_dir(run)))

    def evaluate(self, run: Run, family: str, what: str = "evaluation") -> Job:
        """Return the job that evaluates a network; ``what``: or its gate, or the choice among others."""
        network, checkpoint = self.network(run), self.params.checkpoint(run.checkpoint)
        kind = checkpoint.evaluated
        done = Path(layout.evaluated_dir(run), "metrics.json").exists()
        seconds = cost.evaluation(run.task, network, kind)
        if what == "gate":
            done = Path(self.plan.gate(run)).exists()
        elif what == "choice":
            done = _there(layout.quantized_dir(run))
            held_out = self.plan.scale.tasks[run.task].options.get("heldout")
            seconds = len(self.params.recipe(run.recipe).select) * cost.evaluation(run.task, network, kind, held_out)
        memory = cost.evaluation_memory(network, kind, checkpoint.streamed)
        return Job("evaluate", family, run, {what: seconds}, memory, done)


def _there(directory: str) -> bool:
    """Whether the result of a job is there."""
    return Path(directory, "manifest.json").exists()


def jobs(plan: Plan, made: Estimates, families: dict[Run, str], evaluated: set[Run]) -> list[Job]:
    """Return the jobs on a GPU, each once: networks, gates, quantized runs, choices and evaluations."""
    found = []
    pairs: dict[tuple[str, str], str] = {}
    for run, family in families.items():
        pairs.setdefault(_pair(run), family)
    quantized = {_pair(run) for run in families if plan.params.recipe(run.recipe).quantized}
    for pair, family in pairs.items():
        run = Run(plan.scale.name, *pair, layout.FULL_PRECISION, 0)
        found.append(made.finetune(run, family))
        if pair in quantized:
            found.append(made.evaluate(run, family, "gate"))
    for run in _reconstructed(plan, list(families)):
        found.append(made.reconstruct(run, families.get(run) or pairs[_pair(run)]))
    for run, family in families.items():
        if plan.params.recipe(run.recipe).select:
            found.append(made.evaluate(run, family, "choice"))
        if run in evaluated:
            found.append(made.evaluate(run, family))
    return found


def _costs(plan: Plan, families: dict[Run, str], evaluated: set[Run], pairwise: bool) -> Iterator[str]:
    """Yield estimated GPU-hours, bytes on disk and in memory.

    Raises:
        SettingsError: a job needs more memory than it asks for.
    """
    made = Estimates(plan)
    everything = jobs(plan, made, families, evaluated)
    open_jobs = [job for job in everything if not job.done]
    yield "estimated A100 hours of what is not done (rates: params/bill.yaml):"
    if pairwise:
        yield from _by_pair(made, open_jobs)
    yield from _by_stage(open_jobs)
    yield from _disk(plan, made, open_jobs)
    for stage in ("finetune", "reconstruct", "evaluate"):
        of_stage = [job.memory for job in everything if job.stage == stage]
        if of_stage:
            gpu, host = (max(getattr(memory, name) for memory in of_stage) / 1e9 for name in ("gpu", "host"))
            yield f"largest {stage} job: GPU {gpu:.1f} GB, host {host:.1f} GB"
    if too_large := _too_large(plan, everything):
        raise SettingsError("jobs that need more than they ask for:\n" + "\n".join(too_large))


def _by_pair(made: Estimates, open_jobs: list[Job]) -> Iterator[str]:
    """Yield the hours of the reconstructions of each network."""
    hours: dict[tuple[str, str], float] = defaultdict(float)
    examples: dict[tuple[str, str], Run] = {}
    for job in open_jobs:
        if job.stage == "reconstruct":
            hours[_pair(job.run)] += sum(job.seconds.values()) / 3600
            examples[_pair(job.run)] = job.run
    for pair, total in hours.items():
        network = made.network(examples[pair])
        yield f"  {'/'.join(pair):<40}{total:8.2f} h   {network.flop / 2e6:.0f} MMAC, {network.blocks} blocks"


def _by_stage(open_jobs: list[Job]) -> Iterator[str]:
    """Yield hours by what they are for, and by family of tables."""
    purposes = list(dict.fromkeys(name for job in open_jobs for name in job.seconds))
    families = list(dict.fromkeys(job.family for job in open_jobs))
    hours: dict[tuple[str, str], float] = defaultdict(float)
    for job in open_jobs:
        for name, seconds in job.seconds.items():
            hours[name, job.family] += seconds / 3600
    yield "  ".join([f"  {'by stage':<20}", *(f"{family:>18}" for family in families), f"{'together':>10}"])
    for name in purposes:
        row = [hours[name, family] for family in families]
        yield "  ".join([f"  {name:<20}", *(f"{value:>18.2f}" for value in row), f"{sum(row):>10.2f}"])
    columns = [sum(hours[name, family] for name in purposes) for family in families]
    yield "  ".join([f"  {'together':<20}", *(f"{value:>18.2f}" for value in columns), f"{sum(columns):>10.2f} h"])


def _disk(plan: Plan, made: Estimates, open_jobs: list[Job]) -> Iterator[str]:
    """Yield the bytes that results, state and caches take."""
    weights = quantized = state = caches = 0.0
    for job in open_jobs:
        network = made.network(job.run)
        if job.stage == "finetune":
            linked = plan.params.checkpoint(job.run.checkpoint).streamed and not job.seconds
            weights += 0 if linked else 4 * network.parameters
        elif job.stage == "reconstruct":
            found, _ = plan.hyper(job.run)
            quantized += cost.quantized_bytes(network, plan.params.recipe(job.run.recipe))
            state = max(state, cost.state_bytes(network, found))
            caches = max(caches, cost.cache_bytes(network, found))
    drawn = {plan.samples_dir(job.run): job.run for job in open_jobs if job.stage == "reconstruct"}
    rows = [(protocol.named(plan.scale, run.task), plan.hyper(run)[0].samples) for run in drawn.values()]
    samples = sum(count * math.prod(task.input_shape) for task, count in rows)  # a byte a pixel; texts are shorter
    yield (
        f"on disk: checkpoints {weights / GIB:.1f} GiB, samples {samples / GIB:.1f} GiB, "
        f"quantized networks {quantized / GIB:.1f} GiB (packed codes)"
    )
    yield f"per job: activation caches up to {caches / GIB:.2f} GiB, resume state on disk up to {state / GIB:.2f} GiB"


def _too_large(plan: Plan, everything: list[Job]) -> list[str]:
    """Return what jobs need more of than they ask for; one line stands for all jobs of a stage on a network."""
    worst: dict[tuple[str, str], tuple[float, str]] = {}
    for job in everything:
        asked = plan.resources(job.stage, *_pair(job.run))
        needs = (
            ("GB of GPU memory", job.memory.gpu / 1e9, asked.gpu_mb / 1e3, job.memory.way_out),
            ("GB of host memory", job.memory.host / 1e9, asked.mem_mb / 1e3, job.memory.way_out),
            ("hours", sum(job.seconds.values()) / 3600, asked.runtime / 60, "raise its runtime (needs)"),
        )
        for unit, needed, given, way_out in needs if asked.gpu else ():
            key = f"{job.stage} {job.run.task}/{job.run.checkpoint}", unit
            if needed > max(given, worst[key][0] if key in worst else 0):
                worst[key] = needed, f"{needed:.1f} {unit} ({job.run.recipe}), it asks for {given:.1f}; {way_out}"
    return [f"{where}: {text}" for (where, _), (_, text) in worst.items()]


if __name__ == "__main__":
    cli.main(run, parser())
