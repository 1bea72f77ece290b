"""Write the job files of a plan, and return what each rule reads, for the Snakefile. No torch here."""

import contextlib
import functools
import json
import os
import sys
import traceback
from collections import Counter
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from flexround import code
from flexround.errors import FlexRoundError, InputError
from flexround.io import artifacts
from flexround.jobs import runs, tables
from flexround.jobs.command import FILES
from flexround.jobs.jobfile import COMMON, ROOMS, Code, Planned
from flexround.machine.seeding import derive
from flexround.settings import layout
from flexround.settings.plan import Plan

DECISIVE = ("torch", "torchvision", "transformers", "numpy", "lm_eval")  # other versions can move a number

SHARED = "FLEXROUND_JOBS"  # environment variable: the file of share()


class Resolved(NamedTuple):
    """A planned job."""

    out: str  # the directory, or the first of the files, that it makes
    file: str  # whose name is a digest of the job's settings and code
    reads: list[str]  # the results that its rule reads


def job(plan: Plan, stage: str, *arguments: object) -> Resolved:
    """Write the job file of a stage; ``arguments`` are those of the function that plans it, in ``flexround.jobs``."""
    planned: Planned = getattr(runs if hasattr(runs, stage) else tables, stage)(plan, *arguments)
    reached = None
    if planned.code is not None:
        rooms = (*ROOMS[stage], f"stages/{FILES.get(stage, stage)}.py")
        reached = planned_code(Code(rooms=rooms, modules=planned.code, files=planned.files))
    found = planned.job.model_copy(update={"code": reached})
    path = layout.job_directory(str(found.out)) / f"{found.identity}.json"
    written = _updated(path, found.model_dump_json(indent=1) + "\n")
    return Resolved(str(found.out), written, [str(file) for file in planned.reads])


@functools.cache
def planned_code(of: Code) -> Code:
    """Return the code of a job with its digests as they are now."""
    found = of.found()
    return of.model_copy(update={"digest": code.digest(found), "sha256": code.sha256(found)})


def job_or_exit(plan: Plan, stage: str, *arguments: object) -> Resolved:
    """Return the same for Snakemake; an error ends the program with its text.

    Snakemake takes an error of an input function for a missing rule, and an output that is there for up to date.
    """
    try:
        return job(plan, stage, *arguments)
    except FlexRoundError as error:
        sys.exit(f"error: {error}")
    except Exception:
        sys.exit(traceback.format_exc())


def share(files: dict[str, str]) -> None:
    """Let the processes of a cluster's jobs know the job files of this run: settings may be edited meanwhile."""
    text = json.dumps(files)
    os.environ[SHARED] = _updated(Path(layout.JOBS) / f"{derive(text):016x}.json", text)


def shared() -> dict[str, str]:
    """Return the job files of the run that this process belongs to, as far as it can read them."""
    path = Path(os.environ.get(SHARED, ""))
    return artifacts.read_json(path) if path.is_file() else {}


def _updated(path: Path, text: str) -> str:
    """Write a file unless it has this content; return its path."""
    if not path.exists() or path.read_text() != text:
        artifacts.write_text(path, text)
    return str(path)


def report() -> str:
    """Return a digest of the code that makes the report."""
    return code.digest(code.files((*COMMON, "results", "tools/report.py")))


def upgraded(results: Path) -> list[str]:
    """Return a line for each version of a package that results of a scale were made with and that is not installed."""
    made: Counter[tuple[str, str]] = Counter()
    for path in (*results.glob("evaluated/**/metrics.json"), *results.glob("quantized/**/record.json")):
        with contextlib.suppress(InputError, KeyError, TypeError):  # its readers say that a file is damaged
            packages = artifacts.read_json(path)["environment"]["packages"]
            made.update((name, packages[name]) for name in DECISIVE if packages[name] != metadata.version(name))
    return [
        f"{name} {metadata.version(name)} is installed; results in {results} that were made with {old}: {count}; "
        "they stay, and --forcerun data makes anew what you ask for"
        for (name, old), count in sorted(made.items())
    ]
