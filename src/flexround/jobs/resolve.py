"""Write the job and code files of a plan, and return what each rule reads, for the Snakefile. No torch here."""

import contextlib
import json
import os
import sys
import traceback
from collections import Counter
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from flexround.errors import FlexRoundError, InputError
from flexround.io import artifacts
from flexround.jobs import codefile, runs, tables
from flexround.jobs.codefile import DECISIVE
from flexround.jobs.jobfile import Planned
from flexround.machine.seeding import derive
from flexround.settings import layout
from flexround.settings.layout import CODE
from flexround.settings.plan import Plan

SHARED = "FLEXROUND_JOBS"  # environment variable: the file of share()


class Resolved(NamedTuple):
    """A planned job."""

    out: str  # the directory, or the first of the files, that it makes
    file: str  # whose name is a digest of the job's settings and code
    reads: list[str]  # the results that its rule reads


def job(plan: Plan, stage: str, *arguments: object) -> Resolved:
    """Write the job file of a stage; ``arguments`` are those of the function that plans it, in ``flexround.jobs``."""
    planned: Planned = getattr(runs if hasattr(runs, stage) else tables, stage)(plan, *arguments)
    reached = None if planned.code is None else Path(code(stage, *planned.code, files=planned.files))
    found = planned.job.model_copy(update={"code": reached})
    digest = f"{derive(found.model_dump_json(exclude=set(found.explained))):016x}"
    path = layout.job_directory(str(found.out)) / f"{digest}.json"
    written = _updated(path, found.model_dump_json(indent=1) + "\n")
    return Resolved(str(found.out), written, [str(file) for file in planned.reads])


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
    """Write the code file of the report and return its path."""
    files = tables.templates()
    return code("tabulate", "flexround.tools.report:run", files=files)


def published(scale: str) -> str:
    """Write the name of the scale whose copies lie in ``results``, unless it is there, and return the file's path."""
    return _updated(Path(layout.JOBS) / "published", f"{scale}\n")


def code(stage: str, *targets: str, files: tuple[str, ...] = ()) -> str:
    """Write the code file of a stage and return its path, whose name has a digest of the code.

    ``targets`` are further ``package.module:name`` that the settings make the stage import, ``files`` others it reads.
    """
    digest, text = codefile.contents(f"flexround.stages.{stage}", "flexround.jobs.execution", *targets, files=files)
    return _updated(Path(CODE) / f"{stage}-{digest}.json", text)


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
