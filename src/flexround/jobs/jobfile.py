"""The job file: all that one run of a rule may know of the settings, resolved, as JSON. No torch here.

The Snakefile writes it. Its name is a digest of the settings and of the code file, and a parameter of the rule: so a
changed setting reruns exactly the jobs whose resolved settings changed, whatever the times of files, and a file never
changes while a run uses it. Explanations of the settings are in the file, not in the digest: editing them triggers no
rerun. Paths in it are relative to the project. The modules beside this one have
the classes of the jobs and the functions that plan them; ``stages`` has their work.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

from pydantic import Field

from flexround.errors import SettingsError
from flexround.io import artifacts
from flexround.settings.schema import Checkpoint, Strict, TaskSpec
from flexround.settings.validation import validate

if TYPE_CHECKING:
    from flexround.settings.plan import Plan as Plan
else:
    Plan = Any  # no job depends on the code that planned it


class Job(Strict):
    """What the job files of all rules have."""

    explained: ClassVar[frozenset[str]] = frozenset()  # fields that change no result
    code: Path | None = Field(None, description="code file; none: the job depends on no code (jobs/codefile.py)")
    out: Path = Field(description="the directory, or the first of the files, that the rule makes")

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a job file.

        Raises:
            InputError: it is missing or damaged.
            SettingsError: it was written for another rule or by another version.
        """
        try:
            return validate(cls, artifacts.read_json(path), str(path))
        except SettingsError as error:
            raise SettingsError(f"{error}; snakemake -n writes it anew") from error


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

    job: Job  # without its code file
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
