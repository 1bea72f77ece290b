"""Write the job files: what each run may know of the settings, and the code that it can reach.

The Snakefile asks for the inputs of a rule; they are the job file and what it names. No torch here.
"""

import dataclasses
import functools
import re
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from flexround.errors import FlexRoundError, InputError
from flexround.io import artifacts
from flexround.jobs import codefile, jobfile
from flexround.jobs.jobfile import Job
from flexround.machine.seeding import derive
from flexround.settings import layout
from flexround.settings.layout import CODE, ROOT, Run
from flexround.settings.load import Params
from flexround.settings.plan import Plan

Inputs = dict[str, str]
SKEW = 60  # seconds that clocks of machines with a common file system may differ
settled = False  # whether another process has planned the run: its files hold, whatever has been edited since
FUNCTION = re.compile(r"!function ([\w.]+)\.(\w+)")


class Jobs:
    """The jobs of a plan. Each method writes a job file and returns the inputs of its rule, by name."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.scale, self.params = plan, plan.scale, plan.params

    def fetch(self, name: str) -> Inputs:
        """Fetch one pinned source."""
        out, source = layout.source_file(name), self.params.sources[name]
        return write(jobfile.FetchJob, out, code("fetch"), name=name, source=source, out=layout.SOURCES)

    def data(self, task: str) -> Inputs:
        """Prepare a task's data."""
        out, settings = layout.data_dir(self.scale.name, task), self.scale.tasks[task]
        sources = numbered("source", map(layout.source_file, settings.sources))
        facts = {"scale": self.scale.name, "name": task, "task": settings, "sources": layout.SOURCES}
        return write(jobfile.DataJob, out, code("data", settings.module), **facts) | sources

    def calibrate(self, task: str, samples: int, seed: int) -> Inputs:
        """Draw the calibration samples of a seed."""
        out, settings = layout.calibration_dir(self.scale.name, task, samples, seed), self.scale.tasks[task]
        data = layout.data_dir(self.scale.name, task)
        facts = {"scale": self.scale.name, "name": task, "task": settings, "samples": samples, "seed": seed}
        return write(jobfile.CalibrateJob, out, code("calibrate", settings.module), **facts, data=data) | {"data": data}

    def finetune(self, task: str, checkpoint: str) -> Inputs:
        """Make a full-precision network."""
        out = layout.checkpoint_dir(self.scale.name, task, checkpoint)
        made_from = self.plan.origins(task, checkpoint)
        last = self.params.checkpoint(checkpoint).finish
        job = write(
            jobfile.FinetuneJob,
            out,
            code("finetune", *self._model_code(task, checkpoint), *([last.function] if last else [])),
            **self._network(task, checkpoint),
            train=self.params.train(task, checkpoint),
            origins={name: self.params.sources[name] for name in self.params.checkpoint(checkpoint).sources},
            sources=layout.SOURCES,
            data=made_from.get("data"),
            pretrained=made_from.get("pretrained"),
        )
        return job | made_from

    def gate(self, task: str, checkpoint: str) -> Inputs:
        """Pass or stop a full-precision network; on purpose without the code, so that no edit throws networks away."""
        out = layout.gate_file(self.scale.name, task, checkpoint)
        inputs = {
            "weights": layout.checkpoint_dir(self.scale.name, task, checkpoint),
            "data": layout.data_dir(self.scale.name, task),
        }
        gate = self.params.gate(task, checkpoint).model_dump(include={"metric", "min", "max"})
        network = self._network(task, checkpoint, evaluated=True)
        return write(jobfile.GateJob, out, {}, **network, gate=gate, **inputs) | inputs

    def reconstruct(self, run: Run) -> Inputs:
        """Quantize a network."""
        recipe, (hyper, sources) = self.params.recipe(run.recipe), self.plan.hyper(run)
        rounding = self.params.rounding_target(recipe.rounding or "")
        inputs = {
            "weights": layout.checkpoint_dir(run.scale, run.task, run.checkpoint),
            "samples": self.plan.samples_dir(run),
        }
        job = write(
            jobfile.ReconstructJob,
            layout.quantized_dir(run),
            code("reconstruct", *self._model_code(run.task, run.checkpoint), rounding),
            **self._network(run.task, run.checkpoint),
            run=run,
            recipe=recipe,
            rounding=rounding,
            hyper=hyper,
            hyper_sources=sources,
            **inputs,
        )
        return job | inputs | {"gate": self.plan.gate(run)}

    def select(self, run: Run) -> Inputs:
        """Choose the best of several quantized networks."""
        names, data = self.params.recipe(run.recipe).select, layout.data_dir(run.scale, run.task)
        networks = {name: layout.quantized_dir(dataclasses.replace(run, recipe=name)) for name in names}
        network = self._network(run.task, run.checkpoint, evaluated=True)
        reached = code("select", *self._model_code(run.task, run.checkpoint))
        facts = {"run": run, "networks": networks, "data": data}
        job = write(jobfile.SelectJob, layout.quantized_dir(run), reached, **network, **facts)
        return job | {"data": data} | numbered("of", networks.values())

    def evaluate(self, run: Run) -> Inputs:
        """Evaluate a network, quantized or not."""
        out, recipe = layout.evaluated_dir(run), self.params.recipe(run.recipe)
        inputs = {"network": self.plan.network_dir(run), "data": layout.data_dir(run.scale, run.task)}
        network = self._network(run.task, run.checkpoint, evaluated=True)
        named = *self._model_code(run.task, run.checkpoint), *self._code_of_files(run.task)
        reached = code("evaluate", *named, files=tuple(self.plan.task_files(run.task)))
        return write(jobfile.EvaluateJob, out, reached, **network, run=run, recipe=recipe, **inputs) | inputs

    def _network(self, task: str, checkpoint: str, evaluated: bool = False) -> dict[str, Any]:
        """Return what all jobs know of a network."""
        return {"names": (self.scale.name, task, checkpoint), **network(self.params, task, checkpoint, evaluated)}

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
    irrelevant = {} if evaluated else {"evaluated": "float32"}
    return {
        "task": params.scale.tasks[task].model_copy(update={"sources": (), "files": None}),
        "checkpoint": params.checkpoint(checkpoint).model_copy(update=irrelevant),
    }


def write(kind: type[Job], output: str | Path, reached: Inputs, **values: Any) -> Inputs:
    """Write the job file of an output: a job's fields, checked; ``out`` is the output if it is not among them."""
    job = kind.model_validate({"out": output} | reached | values)
    return {"job": _updated(layout.job_file(str(output)), job.model_dump_json(indent=1) + "\n")} | reached


def numbered(name: str, paths: Iterable[str]) -> Inputs:
    """Return inputs ``NAME_0``, ``NAME_1`` and so on."""
    return {f"{name}_{i}": path for i, path in enumerate(paths)}


def _updated(path: Path, text: str) -> str:
    """Write a file unless it is there with this content; return its path.

    Raises:
        InputError: it is of a time to come, where Snakemake would take what was made before a change for current.
    """
    if path.exists() and path.stat().st_mtime > time.time() + SKEW:
        raise InputError(
            f"{path}: was written later than this machine's clock says; set the clock, or, if the clock is right, run: "
            f'find {layout.JOBS} {CODE} results -newermt now -exec touch -d "$(date +%FT%T)" {{}} +'
        )
    if not path.exists() or (not settled and path.read_text() != text):
        artifacts.write_text(path, text)
    return str(path)


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


@functools.cache
def code(stage: str, *targets: str, files: tuple[str, ...] = ()) -> Inputs:
    """Write the code file of a stage, unless it is there.

    ``targets`` are further ``package.module:name`` that the settings make the stage import, ``files`` others it reads.
    """
    path = Path(CODE) / f"{stage}-{derive(stage, *targets, *files):016x}" / "sha256"
    starts = f"flexround.stages.{stage}", "flexround.jobs.execution", *targets
    text, sources = codefile.contents(*starts, files=files)
    _updated(path.with_name(codefile.SOURCES), sources)
    return {"code": _updated(path, text)}
