"""The job file: all that one run of a rule may know of the settings, resolved, as JSON. No torch here.

The Snakefile writes it. Its name is a digest of settings and code, and a parameter of the rule: so a changed setting
reruns exactly the jobs whose resolved settings changed, whatever the times of files, and a file never changes while a
run uses it. Explanations of the settings are in the file, not in the digest: editing them triggers no rerun. Paths in
it are relative to the project.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

from pydantic import Field

from flexround import code
from flexround.errors import InputError
from flexround.machine.seeding import derive
from flexround.settings.layout import ROOT
from flexround.settings.schema import Checkpoint, Strict, TaskSpec

if TYPE_CHECKING:
    from flexround.settings.plan import Plan as Plan
else:
    Plan = Any  # no job depends on the code that planned it

# The rooms of flexround that decide what a stage makes, beside its own file.
COMMON = ("imports.py", "io", "machine", "metrics.py", "jobs/execution.py", "settings/schema.py")
DATA = (*COMMON, "mini", "tasks", "models/tokenizer_files.py")
NETWORK = (*DATA, "models")
QUANTIZED = (*NETWORK, "quant", "reconstruct")
SHOWN = (*COMMON, "results", "settings/tables.py")
ROOMS = {
    **dict.fromkeys(("fetch",), COMMON),
    **dict.fromkeys(("data", "calibrate"), DATA),
    **dict.fromkeys(("finetune",), NETWORK),
    **dict.fromkeys(("reconstruct", "select", "evaluate"), QUANTIZED),
    **dict.fromkeys(("tabulate", "claims", "ranking", "summary"), SHOWN),
    **dict.fromkeys(("figure",), (*QUANTIZED, *SHOWN)),
}


class Code(Strict):
    """The code of a job as it was planned."""

    rooms: tuple[str, ...]
    modules: tuple[str, ...] = Field((), description="package.module:name that settings make the stage import")
    files: tuple[str, ...] = Field((), description="of the project, that the job reads, too")
    digest: str = ""
    sha256: str = Field("", description="of the whole files; where it is as planned, nothing is parsed")

    def found(self) -> dict[str, Path]:
        """Return all files as they are now."""
        return code.files(self.rooms, self.modules, (ROOT / name for name in self.files))

    def check(self) -> None:
        """Compare the files with the plan.

        Raises:
            InputError: one has changed, in more than comments, docstrings and layout.
        """
        now = self.found()
        if code.sha256(now) != self.sha256 and code.digest(now) != self.digest:
            raise InputError("the code has changed since this run was planned; run the same command again")


class Job(Strict):
    """What the job files of all rules have."""

    explained: ClassVar[frozenset[str]] = frozenset()  # fields that change no result
    code: Code | None = Field(None, description="none: the job depends on no code")
    out: Path = Field(description="the directory, or the first of the files, that the rule makes")

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a job file."""
        return cls.model_validate_json(path.read_text())

    @property
    def identity(self) -> str:
        """A digest of all that decides the result: settings and code."""
        explanations = dict.fromkeys(self.explained, True) | {"code": {"sha256"}}
        return f"{derive(self.model_dump_json(exclude=explanations)):016x}"


class NetworkJob(Job):
    """What all jobs know that build a network of a task; ``names`` are those of scale, task and checkpoint."""

    names: tuple[str, str, str]
    task: TaskSpec
    checkpoint: Checkpoint


class MeasuredJob(NetworkJob):
    """What evaluates a network."""

    data: Path


class Planned(NamedTuple):
    """A job as it is planned; without ``code`` it depends on none."""

    job: Job  # without its code
    reads: Iterable[str | Path] = ()  # the results that its rule reads
    code: tuple[str, ...] | None = ()  # package.module:name of all code that settings make the stage import
    files: tuple[str, ...] = ()  # of the project, that the job reads, too, and whose content counts as code does


def network(plan: Plan, task: str, checkpoint: str, evaluated: bool = False) -> dict[str, Any]:
    """Return what all jobs of a network know of it, without what changes no result.

    ``evaluated`` keeps the type in which the network is evaluated.
    """
    irrelevant = {} if evaluated else {"evaluated": "float32"}
    return {
        "names": (plan.scale.name, task, checkpoint),
        "task": plan.scale.tasks[task].model_copy(update={"sources": (), "files": None}),
        "checkpoint": plan.params.checkpoint(checkpoint).model_copy(update=irrelevant),
    }


def network_code(plan: Plan, task: str, checkpoint: str) -> tuple[str, ...]:
    """Return the code that the settings of a task and a checkpoint name."""
    settings = plan.params.checkpoint(checkpoint)
    model = settings.model
    named = [model.factory, model.blocks, model.equalization, settings.loader, settings.key_map]
    return tuple(target for target in (*named, plan.scale.tasks[task].module) if target)
