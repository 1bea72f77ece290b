"""Rehearse a scale: run its jobs on small stand-ins in the real formats, in a copy of the project."""

import argparse
import contextlib
import fcntl
import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from flexround.errors import InputError, look_up
from flexround.rehearsal import project, scale
from flexround.settings.layout import ROOT
from flexround.settings.plan import Plan
from flexround.tools import cli

log = logging.getLogger(__name__)
DIRECTORY = ROOT / "rehearsal"
FAILED = 1


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
    """Build the copy and run the workflow in it, which tells of every job; a failed one ends it with 1."""
    start = time.monotonic()
    with alone(arguments.directory) as lock:
        params = project.build(arguments.directory, arguments.scale, min(arguments.gpu, 1))
        goals = targets(Plan(params, {"seeds": arguments.seeds}), arguments.table)
        log.info("%s: copy of the project with stand-ins; nothing in it is a result", arguments.directory)
        code = snakemake(arguments.directory, goals, arguments.cores, arguments.gpu, arguments.seeds, lock)
    verdict = f"not everything ran (Snakemake's exit code: {code})" if code else "everything ran"
    minutes = (time.monotonic() - start) / 60
    sys.stdout.write(f"rehearsal of scale {arguments.scale}: {verdict}, {minutes:.1f} minutes\n")
    if code:
        sys.exit(FAILED)


def targets(plan: Plan, table: int | None) -> list[str]:
    """Return Snakemake's targets: one table, or the whole scale with its report."""
    if table is None:
        return ["all", "results/report.html"]
    named = look_up("--table", {str(number): each for number, each in plan.params.tables.items()}, str(table))
    plan.table_runs(table)  # an error says why the scale can't make it
    return [f"results/{named.name}.csv"]


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


if __name__ == "__main__":
    cli.main(run, parser())
