"""Rehearse a scale: run its jobs on small stand-ins in the real formats, in a copy of the project."""

import argparse
import contextlib
import fcntl
import json
import logging
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from flexround.errors import InputError, SettingsError, suggest
from flexround.rehearsal import project, scale
from flexround.results.published_results import SHARED
from flexround.settings.layout import ROOT
from flexround.settings.plan import Plan
from flexround.tools import cli

log = logging.getLogger(__name__)
DIRECTORY = ROOT / "rehearsal"
FAILED = 1
USAGE = ".usage.json"
SHOWN = 20  # failures


def parser() -> argparse.ArgumentParser:
    """Return the command line of this program."""
    arguments = cli.parser(__doc__)
    arguments.set_defaults(scale="paper")
    arguments.add_argument("--table", type=int, help="number in the paper; none: all tables and figures")
    arguments.add_argument("--directory", type=Path, default=DIRECTORY, help="of the copy; an earlier one goes on")
    arguments.add_argument("--cores", default="all", help="of Snakemake")
    arguments.add_argument("--gpu", type=int, default=0, help="GPUs; 0: on CPUs alone")
    arguments.add_argument("--seeds", type=int, help="trials of every quantized run; the scale's if not given")
    return arguments


def run(arguments: argparse.Namespace) -> None:
    """Build the copy, run the workflow in it and print what came of it; a failed job ends it with 1."""
    start = time.monotonic()
    with alone(arguments.directory) as lock:
        params = project.build(arguments.directory, arguments.scale, min(arguments.gpu, 1))
        plan = Plan(params, {"seeds": arguments.seeds})
        if arguments.table is not None and arguments.table not in params.tables:
            raise SettingsError(f"--table {suggest(str(arguments.table), map(str, params.tables))}")
        goals, files = wanted(plan, arguments.table)
        log.info("%s: copy of the project with stand-ins; nothing in it is a result", arguments.directory)
        limits = arguments.cores, arguments.gpu, arguments.seeds
        code = snakemake(arguments.directory, goals, *limits, lock)
    lines, whole = outcome(arguments.directory, files)
    sys.stdout.write(f"rehearsal of scale {arguments.scale}, jobs by stage:\n")
    sys.stdout.writelines(f"{line}\n" for line in lines)
    good = code == 0 and whole
    verdict = "everything ran" if good else f"not everything ran (Snakemake's exit code: {code})"
    sys.stdout.write(f"{verdict}, {(time.monotonic() - start) / 60:.1f} minutes\n")
    if not good:
        sys.exit(FAILED)


def wanted(plan: Plan, table: int | None) -> tuple[list[str], list[str]]:
    """Return Snakemake's targets, and the files that must be there at the end: of one table, or of the whole scale."""
    if table is not None:
        plan.table_runs(table)  # an error says why the scale can't make it
        files = [f"results/{name}" for name in plan.files([table], [])]
        return files[:1], files
    names = plan.files(plan.complete_tables(), plan.complete_figures())
    names += [*SHARED, "claims.html", "report.html", f"{plan.scale.name}/metrics.json"]
    return ["all", "results/report.html"], [f"results/{name}" for name in names]


@contextlib.contextmanager
def alone(directory: Path) -> Iterator[int]:
    """Lock a rehearsal's directory and yield its file descriptor; the system drops the lock whatever ends its holder.

    Raises:
        InputError: if another process holds it.
    """
    directory.mkdir(parents=True, exist_ok=True)
    held = os.open(directory, os.O_RDONLY)
    try:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InputError(
                f"{directory}: a rehearsal is at work there; wait for its end, or make another elsewhere: DIR=OTHER"
            ) from error
        yield held
    finally:
        os.close(held)


def snakemake(directory: Path, goals: Sequence[str], cores: str, gpu: int, seeds: int | None, lock: int) -> int:
    """Run Snakemake on the copy of the project in ``directory``, with its code; return its exit code.

    Snakemake's own locks outlive a power cut, and a rehearsal would not go on after one; ``lock``, see ``alone``, is in
    their place and Snakemake's as long as it lives.
    """
    paths = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    # Nothing is downloaded by mistake: every source is there.
    environment = os.environ | {"PATH": paths, "PYTHONPATH": str(directory.resolve() / "src"), "HF_HUB_OFFLINE": "1"}
    config = [f"scale={scale.NAME}", *([f"seeds={seeds}"] if seeds else [])]
    limits = ["--cores", cores, *(["--resources", f"gpu={gpu}"] if gpu else [])]
    # The goals come first: --resources takes all that follows it.
    command = [sys.executable, "-m", "snakemake", "--nolock", *goals, *limits, "--config", *config]
    return subprocess.run(command, cwd=directory, env=environment, pass_fds=[lock], check=False).returncode


def outcome(directory: Path, files: Sequence[str]) -> tuple[list[str], bool]:
    """Return what the jobs in ``directory`` left behind, in lines; whether none failed and all ``files`` are there."""
    jobs: Counter[str] = Counter()
    seconds, failures = 0.0, []
    for path in sorted((directory / "logs").rglob(f"*{USAGE}")):
        facts = json.loads(path.read_text())
        jobs[_stage(path.relative_to(directory / "logs").parts)] += 1
        seconds += facts["seconds"]
        if facts["exit"]:
            log = path.with_name(path.name.removesuffix(USAGE) + ".log")
            failures.append(f"failed: {log}: {_reason(log, facts['exit'])}")
    lines = [f"  {stage:<14}{count:>6}" for stage, count in sorted(jobs.items())]
    lines += [f"  {'together':<14}{jobs.total():>6}   {seconds / 60:.1f} minutes of jobs", *failures[:SHOWN]]
    if len(failures) > SHOWN:
        lines.append(f"failed: {len(failures) - SHOWN} more")
    missing = [f"missing: {directory / file}" for file in files if not (directory / file).is_file()]
    return lines + missing, not failures and not missing


def _stage(parts: Sequence[str]) -> str:
    """Return what the jobs of a log's directory make: that directory, or ``shown`` for tables, figures and the like."""
    if parts[0] != scale.NAME:
        return parts[0]
    return parts[1] if len(parts) > 2 else "shown"


def _reason(log: Path, code: int) -> str:
    """Return the last line of a failed job's log."""
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()] if log.is_file() else []
    return lines[-1].strip() if lines else f"exit code {code}, nothing in the log"


if __name__ == "__main__":
    cli.main(run, parser())
