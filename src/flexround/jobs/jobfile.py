"""The job file: all that one run of a rule may know of the settings, resolved, as JSON. No torch here.

The Snakefile writes it, rewritten only when its content changes, and it is an input of the rule: so a changed setting
reruns exactly the runs whose resolved settings changed. Paths in it are relative to the project.
"""

from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import Field

from flexround.errors import InputError
from flexround.io import artifacts
from flexround.settings.layout import Run
from flexround.settings.schema import Checkpoint, Count, Gate, Hyper, Recipe, Source, Strict, Task
from flexround.settings.validation import validate

FORMAT: Literal[1] = 1
J = TypeVar("J", bound="Job")


class Job(Strict):
    """What the job files of all rules have."""

    format: Literal[1] = FORMAT
    code: Path | None = Field(None, description="code file; none: the job depends on no code (jobs/codefile.py)")


class FetchJob(Job):
    """Fetch one pinned source."""

    name: str
    source: Source
    out: Path = Field(description="directory of all sources")


class DataJob(Job):
    """Prepare a task's data."""

    scale: str
    name: str
    task: Task
    sources: Path = Field(description="directory of all sources")
    out: Path


class CalibrateJob(Job):
    """Draw the calibration samples of a seed."""

    scale: str
    name: str
    task: Task
    samples: Count
    seed: int
    data: Path
    out: Path


class NetworkJob(Job):
    """What all jobs know that build a network of a task; ``names`` are those of scale, task and checkpoint."""

    names: tuple[str, str, str]
    task: Task
    checkpoint: Checkpoint
    out: Path


class FinetuneJob(NetworkJob):
    """Make a full-precision network: import it, train it, or both."""

    train: dict[str, Any] | None = Field(description="settings that the task reads; none: the weights as they come")
    origins: dict[str, Source] = Field(description="the pinned sources it is made from")
    sources: Path = Field(description="directory of all sources")
    data: Path | None
    pretrained: Path | None = Field(description="directory of the network that it starts from")


class MeasuredJob(NetworkJob):
    """What evaluates a network."""

    data: Path


class GateJob(MeasuredJob):
    """Pass or stop a full-precision network."""

    gate: Gate
    weights: Path


class ReconstructJob(NetworkJob):
    """Quantize a network."""

    run: Run
    recipe: Recipe
    rounding: str = Field(description="package.module:Class")
    hyper: Hyper
    hyper_sources: dict[str, str] = Field(description="where each hyper-parameter comes from")
    weights: Path
    samples: Path


class SelectJob(MeasuredJob):
    """Choose the best of several quantized networks."""

    run: Run
    networks: dict[str, Path] = Field(description="recipe -> directory")


class EvaluateJob(MeasuredJob):
    """Evaluate a network, quantized or not."""

    run: Run
    recipe: Recipe
    network: Path


def read(kind: type[J], path: Path) -> J:
    """Read a job file.

    Raises:
        InputError: it is missing, damaged, or of another format.
        SettingsError: it was written for another rule or by another version.
    """
    content = artifacts.read_json(path)
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise InputError(f"{path}: not a job file of format {FORMAT}; snakemake -n writes it anew")
    return validate(kind, content, str(path))
