"""Write the job and code files of a plan, and say what each rule reads: what the Snakefile asks. No torch here."""

import contextlib
import importlib
import sys
import time
import traceback
from collections import Counter
from importlib import metadata
from pathlib import Path

from flexround.errors import FlexRoundError, InputError
from flexround.io import artifacts
from flexround.jobs import codefile
from flexround.jobs.codefile import DECISIVE
from flexround.jobs.jobfile import NOTES, Planned
from flexround.machine.seeding import derive
from flexround.settings import layout
from flexround.settings.layout import CODE
from flexround.settings.plan import Plan

SKEW = 60  # seconds that clocks of machines with a common file system may differ
LOCKS = Path(".snakemake/locks")  # Snakemake's, of runs that are going on: each lists what the jobs of its run read
settled = False  # whether the run is planned, here or by another process: its files hold, whatever is edited since


def inputs(plan: Plan, stage: str, *arguments: object) -> dict[str, str]:
    """Write the job file of a stage and return the inputs of its rule, by name.

    ``arguments`` are those of the stage's own ``resolve``, in ``flexround.jobs``.
    """
    planned: Planned = importlib.import_module(f"flexround.jobs.{stage}").resolve(plan, *arguments)
    reached = {} if planned.code is None else {"code": code(stage, *planned.code, files=planned.files)}
    job = planned.job.model_copy(update={name: Path(path) for name, path in reached.items()})
    place, explained = layout.job_file(str(job.out)), set(job.explained)
    path = _updated(place, job.model_dump_json(indent=1, exclude=explained) + "\n")
    if explained:
        _updated(place.with_name(NOTES), job.model_dump_json(indent=1, include=explained) + "\n")
    read = {f"read_{number}": str(file) for number, file in enumerate((*planned.files, *planned.reads))}
    return {"job": path} | reached | read


def inputs_or_exit(plan: Plan, stage: str, *arguments: object) -> dict[str, str]:
    """Return the same for Snakemake; an error ends the program with its text.

    Snakemake takes an error of an input function for a missing rule, and an output that is there for up to date.
    """
    try:
        return inputs(plan, stage, *arguments)
    except FlexRoundError as error:
        sys.exit(f"error: {error}")
    except Exception:
        sys.exit(traceback.format_exc())


def _updated(path: Path, text: str) -> str:
    """Write a file unless it is there with this content; return its path.

    Raises:
        InputError: it is of a time to come, where Snakemake would take what was made before a change for current; or a
            run that is going on, which is never this one before it is settled, reads what is to be changed.
    """
    if path.exists() and path.stat().st_mtime > time.time() + SKEW:
        raise InputError(
            f"{path}: was written later than this machine's clock says; set the clock, or, if the clock is right, run: "
            f'find {layout.JOBS} {CODE} results -newermt now -exec touch -d "$(date +%FT%T)" {{}} +'
        )
    if not path.exists() or (not settled and path.read_text() != text):
        if path.exists() and _is_read(path):
            raise InputError(
                f"{path}: a run that is going on here reads it, and this command would change it: its scale, settings "
                "or code are others; wait until that run ends, or, if it was killed, run `snakemake --unlock` first"
            )
        artifacts.write_text(path, text)
    return str(path)


def _is_read(path: Path) -> bool:
    """Return whether a run that is going on reads a file."""
    with contextlib.suppress(FileNotFoundError):  # it has ended meanwhile
        return any(str(path) in lock.read_text().splitlines() for lock in LOCKS.glob("*.input.lock"))
    return False


def report() -> str:
    """Write the code file of the report, unless it is there with this content, and return its path."""
    files = importlib.import_module("flexround.jobs.shared").templates()
    return code("tabulate", "flexround.tools.report:run", files=files)


def published(scale: str) -> str:
    """Write the name of the scale whose copies lie in ``results``, unless it is there, and return the file's path."""
    return _updated(Path(layout.JOBS) / "published", f"{scale}\n")


def code(stage: str, *targets: str, files: tuple[str, ...] = ()) -> str:
    """Write the code file of a stage, unless it is there with this content, and return its path.

    ``targets`` are further ``package.module:name`` that the settings make the stage import, ``files`` others it reads.
    """
    path = Path(CODE) / f"{stage}-{derive(stage, *targets, *files):016x}" / "sha256"
    starts = f"flexround.stages.{stage}", "flexround.jobs.execution", *targets
    text, sources = codefile.contents(*starts, files=files)
    _updated(path, text)  # first: rules read this one, so a lock has its name
    _updated(path.with_name(codefile.SOURCES), sources)
    return str(path)


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
