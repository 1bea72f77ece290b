"""Write a plan's job files, and return each rule's inputs, for the Snakefile. This module imports no torch."""

import contextlib
import functools
import json
import os
import sys
import traceback
from collections import Counter
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from flexround import code
from flexround.errors import FlexRoundError, InputError
from flexround.io import artifacts
from flexround.jobs import runs, tables
from flexround.jobs.command import STAGES
from flexround.jobs.jobfile import COMMON, ROOMS, Code, Planned
from flexround.machine.seeding import derive
from flexround.settings import layout
from flexround.settings.layout import Run
from flexround.settings.plan import Plan

DECISIVE = ("torch", "torchvision", "transformers", "numpy", "lm_eval")  # another version can change a number

SHARED = "FLEXROUND_JOBS"  # environment variable: path of the file that share() writes
EXPECTED: dict[str, tuple[str, float]] = {}  # output of each planned job -> its stage and expected seconds
TIMED = ("finetune", "gate", "reconstruct", "select", "evaluate")  # stages that take more than a second


class Resolved(NamedTuple):
    """A planned job with its job file."""

    out: str  # the directory, or the first file, that the job writes
    file: str  # the job file, whose name is a digest of the job's settings and code
    reads: list[str]  # the results that its rule reads


def job(plan: Plan, stage: str, *arguments: Any) -> Resolved:
    """Write a stage's job file; ``arguments`` are for the function in ``flexround.jobs`` that plans the stage."""
    planned: Planned = getattr(runs if hasattr(runs, stage) else tables, stage)(plan, *arguments)
    found = planned.job
    if planned.code is not None:
        rooms = (*ROOMS[stage], f"stages/{STAGES[stage]}.py")
        found = found.model_copy(update={"code": planned_code(rooms, planned.code)})
    path = layout.job_directory(str(found.out)) / f"{found.identity}.json"
    written = _updated(path, found.model_dump_json(indent=1) + "\n")
    EXPECTED[str(found.out)] = stage, _seconds(plan, stage, arguments)
    return Resolved(str(found.out), written, [str(file) for file in planned.reads])


def _seconds(plan: Plan, stage: str, arguments: Sequence[Any]) -> float:
    """Return the expected seconds of a job on one core."""
    if stage not in TIMED:
        return 1.0
    run = arguments[0]
    if stage in ("finetune", "gate"):
        task, checkpoint = arguments
        run = Run(plan.scale.name, task, checkpoint, "", 0)
    return plan.seconds(stage, run) or 1.0


@functools.cache
def planned_code(rooms: tuple[str, ...], modules: tuple[str, ...]) -> Code:
    """Return a job's code with its present digests."""
    found = code.files(rooms, modules)
    return Code(rooms=rooms, modules=modules, digest=code.digest(found), sha256=code.sha256(found))


def job_or_exit(plan: Plan, stage: str, *arguments: object) -> Resolved:
    """Return the result of :func:`job` for Snakemake; an error ends the program with its text.

    Snakemake would treat an error of an input function as a missing rule, and an existing output as up to date.
    """
    try:
        return job(plan, stage, *arguments)
    except FlexRoundError as error:
        sys.exit(f"error: {error}")
    except Exception:
        sys.exit(traceback.format_exc())


def share(files: dict[str, str]) -> None:
    """Pass this run's job files to the processes of cluster jobs, because settings may be edited meanwhile."""
    text = json.dumps(files)
    os.environ[SHARED] = _updated(Path(layout.JOBS) / f"{derive(text):016x}.json", text)


def shared() -> dict[str, str]:
    """Return the job files of this process's run, or nothing if their list can't be found."""
    path = Path(os.environ.get(SHARED, ""))
    return artifacts.read_json(path) if path.is_file() else {}


def _updated(path: Path, text: str) -> str:
    """Write a file unless its content is already ``text``; return its path."""
    if not path.exists() or path.read_text() != text:
        artifacts.write_text(path, text)
    return str(path)


def report() -> str:
    """Return a digest of the report's code."""
    return code.digest(code.files((*COMMON, "results", "tools/report.py")))


def upgraded(results: Path) -> list[str]:
    """Return a line for each package version that produced results of a scale but is no longer installed."""
    made: Counter[tuple[str, str]] = Counter()
    for path in (*results.glob("evaluated/**/metrics.json"), *results.glob("quantized/**/record.json")):
        with contextlib.suppress(InputError, KeyError, TypeError):  # the readers of a damaged file report it
            packages = artifacts.read_json(path)["environment"]["packages"]
            made.update((name, packages[name]) for name in DECISIVE if packages[name] != metadata.version(name))
    return [
        f"{name} {metadata.version(name)} is installed; results in {results} that were made with {old}: {count}; "
        "they stay; --forcerun data recomputes your target"
        for (name, old), count in sorted(made.items())
    ]
