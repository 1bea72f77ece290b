"""Write the job files: what each run may know of the settings, and the hashes of the code that it can reach.

The Snakefile asks for the inputs of a rule; they are the job file and what it names. No torch here.
"""

import functools
import re
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flexround import artifacts
from flexround.errors import FlexRoundError
from flexround.jobs import jobfile
from flexround.jobs.jobfile import J, Job
from flexround.seeding import derive
from flexround.settings import layout, reach
from flexround.settings.layout import CODE, ROOT, Run
from flexround.settings.load import Params
from flexround.settings.plan import Plan

Inputs = dict[str, str]
FUNCTION = re.compile(r"!function ([\w.]+)\.(\w+)")


class Jobs:
    """The jobs of a plan. Each method writes a job file and returns the inputs of its rule, by name."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.scale, self.params = plan, plan.scale, plan.params

    def fetch(self, name: str) -> Inputs:
        """Fetch one pinned source."""
        job = made(jobfile.FetchJob, name=name, source=self.params.sources[name], out=Path(layout.SOURCES))
        return write(layout.source_file(name), job) | code("fetch")

    def data(self, task: str) -> Inputs:
        """Prepare a task's data."""
        out, settings = layout.data_dir(self.scale.name, task), self.scale.tasks[task]
        job = made(jobfile.DataJob, scale=self.scale.name, name=task, task=settings, sources=layout.SOURCES, out=out)
        sources = {f"source_{i}": layout.source_file(name) for i, name in enumerate(settings.sources)}
        return write(out, job) | code("data", settings.module) | sources

    def calibrate(self, task: str, samples: int, seed: int) -> Inputs:
        """Draw the calibration samples of a seed."""
        out, settings = layout.calibration_dir(self.scale.name, task, samples, seed), self.scale.tasks[task]
        data = layout.data_dir(self.scale.name, task)
        job = made(
            jobfile.CalibrateJob,
            scale=self.scale.name,
            name=task,
            task=settings,
            samples=samples,
            seed=seed,
            data=data,
            out=out,
        )
        return write(out, job) | code("calibrate", settings.module) | {"data": data}

    def finetune(self, task: str, checkpoint: str) -> Inputs:
        """Make a full-precision network."""
        out = layout.checkpoint_dir(self.scale.name, task, checkpoint)
        made_from = self.plan.origins(task, checkpoint)
        settings = self.params.checkpoint(checkpoint)
        reached = code("finetune", *self._model_code(task, checkpoint))
        job = made(
            jobfile.FinetuneJob,
            **self._network(task, checkpoint, out),
            train=self.params.train(task, checkpoint),
            origins={name: self.params.sources[name] for name in settings.sources},
            sources=layout.SOURCES,
            data=made_from.get("data"),
            pretrained=made_from.get("pretrained"),
            **reached,
        )
        return write(out, job) | reached | made_from

    def gate(self, task: str, checkpoint: str) -> Inputs:
        """Pass or stop a full-precision network; on purpose without the code, so that no edit throws networks away."""
        out = layout.gate_file(self.scale.name, task, checkpoint)
        inputs = {
            "weights": layout.checkpoint_dir(self.scale.name, task, checkpoint),
            "data": layout.data_dir(self.scale.name, task),
        }
        gate = self.params.gate(task, checkpoint).model_dump(include={"metric", "min", "max"})
        return (
            write(
                out, made(jobfile.GateJob, **self._network(task, checkpoint, out, evaluated=True), gate=gate, **inputs)
            )
            | inputs
        )

    def reconstruct(self, run: Run) -> Inputs:
        """Quantize a network."""
        out, recipe = layout.quantized_dir(run), self.params.recipe(run.recipe)
        hyper, sources = self.plan.hyper(run)
        rounding = self.params.rounding_target(recipe.rounding or "")
        inputs = {
            "weights": layout.checkpoint_dir(run.scale, run.task, run.checkpoint),
            "samples": self.plan.samples_dir(run),
        }
        reached = code("reconstruct", *self._model_code(run.task, run.checkpoint), rounding)
        job = made(
            jobfile.ReconstructJob,
            **self._network(run.task, run.checkpoint, out),
            run=run,
            recipe=recipe,
            rounding=rounding,
            hyper=hyper,
            hyper_sources=sources,
            **inputs,
            **reached,
        )
        return write(out, job) | inputs | reached | {"gate": self.plan.gate(run)}

    def select(self, run: Run) -> Inputs:
        """Choose the best of several quantized networks."""
        out, names = layout.quantized_dir(run), self.params.recipe(run.recipe).select
        networks = {
            name: layout.quantized_dir(Run(run.scale, run.task, run.checkpoint, name, run.seed)) for name in names
        }
        data = layout.data_dir(run.scale, run.task)
        network = self._network(run.task, run.checkpoint, out, evaluated=True)
        job = made(jobfile.SelectJob, **network, run=run, networks=networks, data=data)
        reached = code("select", *self._model_code(run.task, run.checkpoint))
        return (
            write(out, job) | reached | {"data": data} | {f"of_{i}": path for i, path in enumerate(networks.values())}
        )

    def evaluate(self, run: Run) -> Inputs:
        """Evaluate a network, quantized or not."""
        out = layout.evaluated_dir(run)
        inputs = {"network": self.plan.network_dir(run), "data": layout.data_dir(run.scale, run.task)}
        recipe = self.params.recipe(run.recipe)
        network = self._network(run.task, run.checkpoint, out, evaluated=True)
        named = [*self._model_code(run.task, run.checkpoint), *self._code_of_files(run.task)]
        reached = code("evaluate", *named)
        job = made(jobfile.EvaluateJob, **network, run=run, recipe=recipe, **inputs, **reached)
        return write(out, job) | reached | inputs

    def _network(self, task: str, checkpoint: str, out: str, evaluated: bool = False) -> dict[str, Any]:
        """Return what all jobs know of a network."""
        names = (self.scale.name, task, checkpoint)
        return {"names": names, "out": out, **network(self.params, task, checkpoint, evaluated)}

    def _code_of_files(self, task: str) -> list[str]:
        """Return the functions that the files of a task's evaluation name: lm-eval's YAML has a tag for them."""
        texts = [(ROOT / path).read_text() for path in self.plan.task_files(task)]
        return [":".join(function) for text in texts for function in FUNCTION.findall(text)]

    def _model_code(self, task: str, checkpoint: str) -> list[str]:
        """Return the code that the settings of a task and a checkpoint name."""
        settings = self.params.checkpoint(checkpoint)
        model = settings.model
        named = [model.factory, model.blocks, model.equalization, settings.loader, settings.key_map]
        return [target for target in (*named, self.scale.tasks[task].module) if target]


def network(params: Params, task: str, checkpoint: str, evaluated: bool = False) -> dict[str, Any]:
    """Return ``task`` and ``checkpoint`` without what changes no result; ``evaluated`` keeps how it is evaluated."""
    irrelevant = {"mem_mb": None, "runtime": None} | ({} if evaluated else {"evaluated": "float32"})
    return {
        "task": params.scale.tasks[task].model_copy(update={"sources": (), "files": None}),
        "checkpoint": params.checkpoint(checkpoint).model_copy(update=irrelevant),
    }


def made(kind: type[J], **values: Any) -> J:
    """Return a job from its fields, checked."""
    return kind.model_validate(values)


def write(out: str | Path, job: Job) -> Inputs:
    """Write the job file of an output, unless it is there with this content."""
    path, text = layout.job_file(str(out)), job.model_dump_json(indent=1) + "\n"
    if not path.exists() or path.read_text() != text:
        artifacts.write_text(path, text)
    return {"job": str(path)}


class Fatal:
    """Jobs whose errors end the program with their text.

    Snakemake takes an error of an input function for a missing rule, and an output that is there for up to date.
    """

    def __init__(self, jobs: object) -> None:
        self._jobs = jobs

    def __getattr__(self, name: str) -> Callable[..., Inputs]:
        method = getattr(self._jobs, name)

        def resolved(*arguments: object) -> Inputs:
            try:
                return method(*arguments)
            except FlexRoundError as error:
                sys.exit(f"error: {error}")
            except Exception:
                sys.exit(traceback.format_exc())

        return resolved


def hashes(stage: str, *targets: str) -> dict[str, str]:
    """Return file -> hash of what a stage can reach in it; a user's file by its name alone, since it may be moved.

    Args:
        stage: module under ``flexround.stages``.
        *targets: further ``package.module:name`` that the settings make the stage import.
    """
    starts = (f"flexround.stages.{stage}:run", "flexround.jobs.execution", *targets)
    reached = reach.reached(*starts)
    return {
        str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else path.name: digest
        for path, digest in sorted(reached.items())
    }


@functools.cache
def code(stage: str, *targets: str) -> Inputs:
    """Write the hashes of the code that a stage can reach, unless they are there."""
    name = f"{derive(stage, *targets):016x}"
    path = Path(CODE) / f"{stage}-{name}" / "sha256"
    text = "".join(f"{digest}  {file}\n" for file, digest in hashes(stage, *targets).items())
    if not path.exists() or path.read_text() != text:
        artifacts.write_text(path, text)
    return {"code": str(path)}
