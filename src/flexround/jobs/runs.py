"""The jobs of networks, from sources to evaluations: fields of each job, and a planning function named as its stage."""

import dataclasses
import hashlib
from pathlib import Path
from typing import Any

from pydantic import Field

from flexround.io import sources
from flexround.jobs.jobfile import Job, MeasuredJob, NetworkJob, Plan, Planned, network, network_code
from flexround.settings import layout
from flexround.settings.layout import Run
from flexround.settings.schema import Count, Gate, Hyper, Recipe, TaskSpec
from flexround.settings.sources import Source


class FetchJob(Job):
    """Fetch one pinned source."""

    explained = frozenset({"source"})
    name: str
    source: Source
    pins: dict[str, Any] = Field(
        description="what of the source decides its content: not the licence, nor the address of a pinned one"
    )
    stamp: str | None = Field(
        None, description="names, sizes and times of the user's own files: an edit makes another job"
    )


def fetch(plan: Plan, name: str) -> Planned:
    """Plan the download of a source."""
    source = plan.params.sources[name]
    stamp = _stamp(source.placed) if source.placed else None
    address = set() if source.inside or source.placed or not source.sha256 else {"location", "path"}
    pins = source.model_dump(mode="json", exclude={"licence", *address})
    return Planned(FetchJob(name=name, source=source, pins=pins, stamp=stamp, out=layout.source_file(name)))


def _stamp(place: Path) -> str:
    """Return a hash that changes when a file of ``place`` is edited, added or removed; no file is read."""
    found = [place] if place.is_file() else sources.files(place)
    facts = ((path.relative_to(place).as_posix(), path.stat()) for path in found)
    text = "".join(f"{name} {found.st_size} {found.st_mtime_ns}\n" for name, found in facts)
    return hashlib.sha256(text.encode()).hexdigest()


class DataJob(Job):
    """Prepare a task's data."""

    explained = frozenset({"origins"})
    name: str
    task: TaskSpec
    origins: dict[str, Source] = Field(
        description="the pinned sources it is made from; their records say what they hold"
    )
    sources: Path = Field(description="directory of all sources")


def data(plan: Plan, task: str) -> Planned:
    """Plan a task's data."""
    settings = plan.scale.tasks[task]
    job = DataJob(
        name=task,
        task=settings,
        origins={name: plan.params.sources[name] for name in settings.sources},
        sources=layout.SOURCES,
        out=layout.data_dir(plan.scale.name, task),
    )
    return Planned(job, map(layout.source_file, settings.sources), (settings.module,))


class FinetuneJob(NetworkJob):
    """Create a full-precision network by import, training, or both."""

    explained = frozenset({"origins"})
    train: dict[str, Any] | None = Field(description="settings that the task reads; none: the weights as they come")
    origins: dict[str, Source] = Field(
        description="the pinned sources it is made from; their records say what they hold"
    )
    sources: Path = Field(description="directory of all sources")
    data: Path | None
    pretrained: Path | None = Field(description="directory of the network that it starts from")


def finetune(plan: Plan, task: str, checkpoint: str) -> Planned:
    """Plan the full-precision network of a task and a checkpoint."""
    settings, made_from = plan.params.checkpoint(checkpoint), plan.origins(task, checkpoint)
    job = FinetuneJob(
        **network(plan, task, checkpoint),
        train=plan.params.train(task, checkpoint),
        origins={name: plan.params.sources[name] for name in settings.sources},
        sources=layout.SOURCES,
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
    rounding: str = Field(description="package.module:Class")
    hyper: Hyper
    hyper_sources: dict[str, str] = Field(description="where each hyper-parameter comes from")
    weights: Path
    samples: Path


def reconstruct(plan: Plan, run: Run) -> Planned:
    """Plan a run's reconstruction."""
    plan.params.check_fit(run)
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
    networks: dict[str, Path] = Field(description="recipe -> directory")


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
    """Plan a run's evaluation; the files of its task count as code."""
    job = EvaluateJob(
        **network(plan, run.task, run.checkpoint, evaluated=True),
        run=run,
        recipe=plan.params.recipe(run.recipe),
        network=plan.network_dir(run),
        data=layout.data_dir(run.scale, run.task),
        out=layout.evaluated_dir(run),
    )
    code = network_code(plan, run.task, run.checkpoint)
    return Planned(job, [job.network, job.data], code, tuple(plan.task_files(run.task)))
