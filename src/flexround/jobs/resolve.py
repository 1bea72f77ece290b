"""Write the job files: what each run may know of the settings, and the hashes of the code that it can reach.

The Snakefile asks for the inputs of a rule; they are the job file and what it names. No torch here.
"""

import functools
from pathlib import Path

from flexround import artifacts
from flexround.jobs import jobfile
from flexround.jobs.jobfile import Job
from flexround.seeding import derive
from flexround.settings import layout, reach
from flexround.settings.layout import CODE, ROOT, Run
from flexround.settings.plan import Plan

Inputs = dict[str, str]
CALLED = {  # what a stage calls of a task
    "data": {"prepare"},
    "calibrate": {"calibration"},
    "finetune": {"finetune"},
    "reconstruct": {"inputs"},
    "select": {"evaluate"},
    "evaluate": {"evaluate"},
}


class Jobs:
    """The jobs of a plan. Each method writes a job file and returns the inputs of its rule, by name."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.scale, self.params = plan, plan.scale, plan.params

    def fetch(self, name: str) -> Inputs:
        """Fetch one pinned source."""
        job = jobfile.FetchJob(name=name, source=self.params.sources[name], out=Path(layout.SOURCES))
        return self._write(layout.source_file(name), job) | self._code("fetch")

    def data(self, task: str) -> Inputs:
        """Prepare a task's data."""
        out, settings = layout.data_dir(self.scale.name, task), self.scale.tasks[task]
        job = jobfile.DataJob(scale=self.scale.name, name=task, task=settings, sources=layout.SOURCES, out=out)
        sources = {f"source_{i}": layout.source_file(name) for i, name in enumerate(settings.sources)}
        return self._write(out, job) | self._code("data", settings.module) | sources

    def calibrate(self, task: str, samples: int, seed: int) -> Inputs:
        """Draw the calibration samples of a seed."""
        out, settings = layout.calibration_dir(self.scale.name, task, samples, seed), self.scale.tasks[task]
        data = layout.data_dir(self.scale.name, task)
        job = jobfile.CalibrateJob(
            scale=self.scale.name, name=task, task=settings, samples=samples, seed=seed, data=data, out=out
        )
        return self._write(out, job) | self._code("calibrate", settings.module) | {"data": data}

    def finetune(self, task: str, checkpoint: str) -> Inputs:
        """Make a full-precision network."""
        out = layout.checkpoint_dir(self.scale.name, task, checkpoint)
        made_from = self.plan.origins(task, checkpoint)
        settings = self.params.checkpoint(checkpoint)
        job = jobfile.FinetuneJob(
            **self._network(task, checkpoint, out),
            train=self.params.train(task, checkpoint),
            origins={name: self.params.sources[name] for name in settings.sources},
            sources=layout.SOURCES,
            data=made_from.get("data"),
            pretrained=made_from.get("pretrained"),
        )
        return self._write(out, job) | self._code("finetune", *self._model_code(task, checkpoint)) | made_from

    def gate(self, task: str, checkpoint: str) -> Inputs:
        """Pass or stop a full-precision network; on purpose without the code, so that no edit throws networks away."""
        out = layout.gate_file(self.scale.name, task, checkpoint)
        inputs = {
            "weights": layout.checkpoint_dir(self.scale.name, task, checkpoint),
            "data": layout.data_dir(self.scale.name, task),
        }
        gate = self.params.gate(task, checkpoint).model_dump(include={"metric", "min", "max"})
        return (
            self._write(
                out, jobfile.GateJob(**self._network(task, checkpoint, out, evaluated=True), gate=gate, **inputs)
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
        code = self._code("reconstruct", *self._model_code(run.task, run.checkpoint), rounding)
        job = jobfile.ReconstructJob(
            **self._network(run.task, run.checkpoint, out),
            run=run,
            recipe=recipe,
            rounding=rounding,
            hyper=hyper,
            hyper_sources=sources,
            **inputs,
            **code,
        )
        return self._write(out, job) | inputs | code | {"gate": self.plan.gate(run)}

    def select(self, run: Run) -> Inputs:
        """Choose the best of several quantized networks."""
        out, names = layout.quantized_dir(run), self.params.recipe(run.recipe).select
        networks = {
            name: layout.quantized_dir(Run(run.scale, run.task, run.checkpoint, name, run.seed)) for name in names
        }
        data = layout.data_dir(run.scale, run.task)
        network = self._network(run.task, run.checkpoint, out, evaluated=True)
        job = jobfile.SelectJob(**network, run=run, networks=networks, data=data)
        code = self._code("select", *self._model_code(run.task, run.checkpoint))
        return (
            self._write(out, job)
            | code
            | {"data": data}
            | {f"of_{i}": path for i, path in enumerate(networks.values())}
        )

    def evaluate(self, run: Run) -> Inputs:
        """Evaluate a network, quantized or not."""
        out = layout.evaluated_dir(run)
        inputs = {"network": self.plan.network_dir(run), "data": layout.data_dir(run.scale, run.task)}
        recipe = self.params.recipe(run.recipe)
        network = self._network(run.task, run.checkpoint, out, evaluated=True)
        job = jobfile.EvaluateJob(**network, run=run, recipe=recipe, **inputs)
        return self._write(out, job) | self._code("evaluate", *self._model_code(run.task, run.checkpoint)) | inputs

    def _network(self, task: str, checkpoint: str, out: str, evaluated: bool = False) -> dict[str, object]:
        """Return what all jobs know of a network, without what changes none of their results."""
        irrelevant = {"mem_mb": None, "runtime": None} | ({} if evaluated else {"evaluated": "float32"})
        return {
            "names": (self.scale.name, task, checkpoint),
            "task": self.scale.tasks[task].model_copy(update={"sources": (), "files": None}),
            "checkpoint": self.params.checkpoint(checkpoint).model_copy(update=irrelevant),
            "out": out,
        }

    def _model_code(self, task: str, checkpoint: str) -> list[str]:
        """Return the code that the settings of a task and a checkpoint name."""
        settings = self.params.checkpoint(checkpoint)
        model = settings.model
        named = [model.factory, model.blocks, model.equalization, settings.loader, settings.key_map]
        return [target for target in (*named, self.scale.tasks[task].module) if target]

    def _write(self, out: str, job: Job) -> Inputs:
        """Write the job file of an output."""
        return {"job": jobfile.write(layout.job_file(out), job)}

    def _code(self, stage: str, *targets: str) -> Inputs:
        """Return the file of hashes of a stage."""
        return {"code": code(stage, *targets)}


def hashes(stage: str, *targets: str) -> dict[str, str]:
    """Return file -> hash of what a stage can reach in it; a user's file by its name alone, since it may be moved.

    Args:
        stage: module under ``flexround.stages``.
        *targets: further ``package.module:name`` that the settings make the stage import.
    """
    starts = (f"flexround.stages.{stage}:run", "flexround.jobs.execution:execute", *targets)
    reached = reach.reached(*starts, methods=frozenset(CALLED.get(stage, ())))
    return {
        str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else path.name: digest
        for path, digest in sorted(reached.items())
    }


@functools.cache
def code(stage: str, *targets: str) -> str:
    """Write the hashes of the code that a stage can reach, unless they are there, and return the file's path."""
    name = f"{derive(stage, *targets):016x}"
    path = Path(CODE) / f"{stage}-{name}" / "sha256"
    text = "".join(f"{digest}  {file}\n" for file, digest in hashes(stage, *targets).items())
    if not path.exists() or path.read_text() != text:
        artifacts.write_text(path, text)
    return str(path)
