"""The jobs of networks, from sources to evaluations: fields of each job, and a planning function named as its stage."""

import dataclasses
from pathlib import Path
from typing import Any

from flexround.io import sources
from flexround.jobs.jobfile import Job, MeasuredJob, NetworkJob, Planned, network, network_code
from flexround.settings import layout
from flexround.settings.layout import Run
from flexround.settings.plan import Plan
from flexround.settings.schema import Count, Gate, Hyper, Recipe, TaskSpec
from flexround.settings.sources import Source


class FetchJob(Job):
    """Fetch one pinned source."""

    explained = frozenset({"source"})
    name: str
    source: Source
    pins: dict[str, Any]  # fields that decide the content: not the licence, nor the address of a pinned source
    stamp: str | None = None  # of names, sizes and times of the user's own files


def fetch(plan: Plan, name: str) -> Planned:
    """Plan the download of a source."""
    source = plan.params.sources[name]
    stamp = sources.stamp(source.placed) if source.placed else None
    address = set() if source.inside or source.placed or not source.sha256 else {"location", "path"}
    pins = source.model_dump(mode="json", exclude={"licence", *address})
    return Planned(FetchJob(name=name, source=source, pins=pins, stamp=stamp, out=layout.source_file(name)))


class DataJob(Job):
    """Prepare a task's data."""

    explained = frozenset({"origins"})
    name: str
    task: TaskSpec
    origins: dict[str, Source]  # whose records hold the hashes


def data(plan: Plan, task: str) -> Planned:
    """Plan a task's data."""
    settings = plan.scale.tasks[task]
    origins = {name: plan.params.sources[name] for name in settings.sources}
    job = DataJob(name=task, task=settings, origins=origins, out=layout.data_dir(plan.scale.name, task))
    return Planned(job, map(layout.source_file, settings.sources), (settings.module,))


class FinetuneJob(NetworkJob):
    """Create a full-precision network by import, training, or both."""

    explained = frozenset({"origins"})
    train: dict[str, Any] | None  # settings that the task reads; none: the weights are used unchanged
    origins: dict[str, Source]  # whose records hold the hashes
    data: Path | None
    pretrained: Path | None  # directory of the network with which training starts


def finetune(plan: Plan, task: str, checkpoint: str) -> Planned:
    """Plan the full-precision network of a task and a checkpoint."""
    settings, made_from = plan.params.checkpoint(checkpoint), plan.origins(task, checkpoint)
    job = FinetuneJob(
        **network(plan, task, checkpoint),
        train=plan.params.train(task, checkpoint),
        origins={name: plan.params.sources[name] for name in settings.sources},
        data=made_from.get("data"),
        pretrained=made_from.get("pretrained"),
        out=layout.checkpoint_dir(plan.scale.name, task, checkpoint),
    )
    last = (settings.finish.function,) if settings.finish else ()
    return Planned(job, made_from.values(), (*network_code(plan, task, checkpoint), *last))


class GateJob(MeasuredJob):
    """Pass or stop a full-precision network."""

    gate: Gate
    weights: Path


def gate(plan: Plan, task: str, checkpoint: str) -> Planned:
    """Plan a network's gate, on purpose without the code, so that no edit invalidates networks."""
    scale, rule = plan.scale.name, plan.params.gate(task, checkpoint)
    facts = network(plan, task, checkpoint, evaluated=True)
    facts["task"] = facts["task"].model_copy(update={"options": facts["task"].options | rule.options})
    job = GateJob(
        **facts,
        gate=rule.model_dump(include=set(Gate.model_fields)),
        weights=layout.checkpoint_dir(scale, task, checkpoint),
        data=layout.data_dir(scale, task),
        out=layout.gate_file(scale, task, checkpoint),
    )
    return Planned(job, [job.weights, job.data], code=None)


class CalibrateJob(Job):
    """Draw the calibration samples of a seed."""

    name: str
    task: TaskSpec
    samples: Count
    seed: int
    data: Path


def calibrate(plan: Plan, task: str, samples: int, seed: int) -> Planned:
    """Plan the calibration samples of a task and a seed."""
    scale, settings = plan.scale.name, plan.scale.tasks[task]
    data, out = layout.data_dir(scale, task), layout.calibration_dir(scale, task, samples, seed)
    job = CalibrateJob(name=task, task=settings, samples=samples, seed=seed, data=data, out=out)
    return Planned(job, [data], (settings.module,))


class ReconstructJob(NetworkJob):
    """Quantize a network."""

    explained = frozenset({"hyper_sources"})
    run: Run
    recipe: Recipe
    rounding: str  # package.module:Class
    hyper: Hyper
    hyper_sources: dict[str, str]
    weights: Path
    samples: Path


def reconstruct(plan: Plan, run: Run) -> Planned:
    """Plan a run's reconstruction."""
    recipe, (hyper, origins) = plan.params.recipe(run.recipe), plan.hyper(run)
    rounding = plan.params.rounding_target(recipe.rounding or "")
    job = ReconstructJob(
        **network(plan, run.task, run.checkpoint),
        run=run,
        recipe=recipe,
        rounding=rounding,
        hyper=hyper,
        hyper_sources=origins,
        weights=layout.checkpoint_dir(run.scale, run.task, run.checkpoint),
        samples=plan.samples_dir(run),
        out=layout.quantized_dir(run),
    )
    code = (*network_code(plan, run.task, run.checkpoint), rounding)
    return Planned(job, [job.weights, job.samples, plan.gate(run)], code)


class SelectJob(MeasuredJob):
    """Choose the best of several quantized networks."""

    run: Run
    networks: dict[str, Path]  # recipe -> directory


def select(plan: Plan, run: Run) -> Planned:
    """Plan the choice among a run's networks."""
    plan.params.check_fit(run)
    names = plan.params.recipe(run.recipe).select
    job = SelectJob(
        **network(plan, run.task, run.checkpoint, evaluated=True),
        run=run,
        networks={name: layout.quantized_dir(dataclasses.replace(run, recipe=name)) for name in names},
        data=layout.data_dir(run.scale, run.task),
        out=layout.quantized_dir(run),
    )
    return Planned(job, [job.data, *job.networks.values()], network_code(plan, run.task, run.checkpoint))


class EvaluateJob(MeasuredJob):
    """Evaluate a network, quantized or not."""

    run: Run
    recipe: Recipe
    network: Path


def evaluate(plan: Plan, run: Run) -> Planned:
    """Plan a run's evaluation."""
    job = EvaluateJob(
        **network(plan, run.task, run.checkpoint, evaluated=True),
        run=run,
        recipe=plan.params.recipe(run.recipe),
        network=plan.network_dir(run),
        data=layout.data_dir(run.scale, run.task),
        out=layout.evaluated_dir(run),
    )
    return Planned(job, [job.network, job.data], network_code(plan, run.task, run.checkpoint))
