"""Rehearse a scale: run its jobs on small stand-ins in the real formats, in a copy of the project."""

import argparse
import logging
import sys
import time
from pathlib import Path

from flexround.errors import SettingsError, suggest
from flexround.rehearsal import project, workflow
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
    """Build the copy, run the workflow in it and print what came of it; a failed job ends it with 1."""
    start = time.monotonic()
    with workflow.alone(arguments.directory) as lock:
        params = project.build(arguments.directory, arguments.scale, min(arguments.gpu, 1))
        plan = Plan(params, arguments.seeds)
        if arguments.table is not None and arguments.table not in params.tables:
            raise SettingsError(f"--table {suggest(str(arguments.table), map(str, params.tables))}")
        goals, files = workflow.wanted(plan, arguments.table)
        log.info("%s: copy of the project with stand-ins; nothing in it is a result", arguments.directory)
        limits = arguments.cores, arguments.gpu, arguments.seeds
        code = workflow.snakemake(arguments.directory, goals, *limits, lock)
    lines, whole = workflow.outcome(arguments.directory, files)
    sys.stdout.write(f"rehearsal of scale {arguments.scale}, jobs by stage:\n")
    sys.stdout.writelines(f"{line}\n" for line in lines)
    good = code == 0 and whole
    verdict = "everything ran" if good else f"not everything ran (Snakemake's exit code: {code})"
    sys.stdout.write(f"{verdict}, {(time.monotonic() - start) / 60:.1f} minutes\n")
    if not good:
        sys.exit(FAILED)


if __name__ == "__main__":
    cli.main(run, parser())
