"""The job file: all resolved settings that one run of a rule may read, as JSON. This module imports no torch.

The Snakefile writes it. Its name is a digest of settings and code, and a parameter of the rule. So a changed setting
reruns exactly the jobs whose resolved settings changed, whatever the file times, and no file changes while a run uses
it. Explanations of the settings are in the file but not in the digest: editing them triggers no rerun. Paths in the
file are relative to the project.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

from pydantic import Field

from flexround import code
from flexround.errors import InputError
from flexround.machine.seeding import derive
from flexround.settings.plan import Plan
from flexround.settings.schema import Checkpoint, Strict, TaskSpec

# The parts of flexround that decide a stage's results, besides the stage's own file.
COMMON = ("imports.py", "io", "machine", "metrics.py", "jobs/execution.py", "settings/schema.py")
DATA = (*COMMON, "mini", "tasks", "models/tokenizer_files.py")
NETWORK = (*DATA, "models")
QUANTIZED = (*NETWORK, "quant", "reconstruct")
SHOWN = (*COMMON, "results", "settings/tables.py")
ROOMS = {
    **dict.fromkeys(("fetch",), COMMON),
    **dict.fromkeys(("data", "calibrate"), DATA),
    **dict.fromkeys(("finetune",), NETWORK),
    "reconstruct": QUANTIZED,
    **dict.fromkeys(("select", "evaluate"), (*QUANTIZED, "params/lm_eval")),
    **dict.fromkeys(("tabulate", "claims", "ranking", "summary"), SHOWN),
    **dict.fromkeys(("figure",), (*QUANTIZED, *SHOWN)),
}


class Code(Strict):
    """A job's code at the time of planning."""

    rooms: tuple[str, ...]
    modules: tuple[str, ...] = Field((), description="package.module:name that settings make the stage import")
    digest: str = ""
    sha256: str = ""  # of the whole files: nothing is parsed where it is as planned

    def found(self) -> dict[str, Path]:
        """Return all files in their present state."""
        return code.files(self.rooms, self.modules)

    def check(self) -> None:
        """Compare the code with the plan.

        Raises:
            InputError: a file has changed, in more than comments, docstrings and layout.
        """
        now = self.found()
        if code.sha256(now) != self.sha256 and code.digest(now) != self.digest:
            raise InputError("the code has changed since this run was planned; run the same command again")


class Job(Strict):
    """The common fields of all rules' job files."""

    explained: ClassVar[frozenset[str]] = frozenset()  # fields that change no result
    code: Code | None = Field(None, description="none: the job depends on no code")
    out: Path = Field(description="the directory, or the first of the files, that the rule makes")

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a job file."""
        return cls.model_validate_json(path.read_text())

    @property
    def identity(self) -> str:
        """A digest of the settings and the code, which decide the result."""
        explanations = dict.fromkeys(self.explained, True) | {"code": {"sha256"}}
        return f"{derive(self.model_dump_json(exclude=explanations)):016x}"


class NetworkJob(Job):
    """The common fields of all jobs that build a task's network; ``names`` are of scale, task and checkpoint."""

    names: tuple[str, str, str]
    task: TaskSpec
    checkpoint: Checkpoint


class MeasuredJob(NetworkJob):
    """A job that evaluates a network."""

    data: Path


class Planned(NamedTuple):
    """A planned job; if ``code`` is None, the job depends on no code."""

    job: Job  # without its code
    reads: Iterable[str | Path] = ()  # the results that its rule reads
    code: tuple[str, ...] | None = ()  # package.module:name of all code that the stage imports because of settings


def network(plan: Plan, task: str, checkpoint: str, evaluated: bool = False) -> dict[str, Any]:
    """Return the network's fields for all its jobs, without settings that change no result.

    With ``evaluated`` the type in which the network is evaluated is included.
    """
    irrelevant = {} if evaluated else {"evaluated": "float32"}
    return {
        "names": (plan.scale.name, task, checkpoint),
        "task": plan.scale.tasks[task].model_copy(update={"sources": ()}),
        "checkpoint": plan.params.checkpoint(checkpoint).model_copy(update=irrelevant),
    }


def network_code(plan: Plan, task: str, checkpoint: str) -> tuple[str, ...]:
    """Return the code that a task's and a checkpoint's settings name."""
    settings = plan.params.checkpoint(checkpoint)
    model = settings.model
    named = [model.factory, model.blocks, model.equalization, settings.loader, settings.key_map]
    return tuple(target for target in (*named, plan.scale.tasks[task].module) if target)
