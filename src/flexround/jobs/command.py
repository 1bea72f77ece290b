"""The command line of all jobs: the worker does the job, or else this process. Imports nothing slow."""

import argparse
import json
import os
import resource
import sys
import time
from pathlib import Path
from typing import NoReturn

from flexround.io import artifacts
from flexround.jobs import worker

STAGES = {  # stage -> its module in flexround.stages
    **dict.fromkeys(("fetch", "data", "calibrate"), "data"),
    "finetune": "finetune",
    "reconstruct": "reconstruct",
    **dict.fromkeys(("gate", "select", "evaluate"), "evaluate"),
    "figure": "figure",
    **dict.fromkeys(("tabulate", "claims", "ranking", "summary"), "show"),
}


def target(stage: str) -> str:
    """Return a stage's function as ``package.module:name``; a name with a dot is the user's own module."""
    return f"{stage}:run" if "." in stage else f"flexround.stages.{STAGES[stage]}:{stage}"


def parser() -> argparse.ArgumentParser:
    """Return the command line of all stages; the job file holds all their other input."""
    arguments = argparse.ArgumentParser(prog="python -m flexround.jobs", description="Do one job of a run.")
    add = arguments.add_argument
    add("stage", help=f"one of {', '.join(STAGES)}; flexround/stages has their descriptions")
    add("job", type=Path, help="JSON file with everything that the job reads of settings")
    add("--threads", type=int, default=1, help="CPU threads (1)")
    add("--gpus", type=int, default=0, help="1: there must be a GPU; 0: a GPU if there is one")
    add("--jobs-per-gpu", type=int, default=1, help="jobs that share a GPU (1)")
    add("--usage", type=Path, help="where to write seconds, CPU seconds, peak memory and exit code")
    state = Path(os.environ.get("FLEXROUND_STATE", ".state"))
    add("--state", type=Path, default=state, help="where finetune, reconstruct and evaluate keep unfinished work")
    add("--gpu-cache-mb", type=int, help="reconstruct: GPU memory for activations; half of its share by default")
    add("--preflight", action="store_true", help="reconstruct: say what memory and time it takes, and write nothing")
    return arguments


def main() -> NoReturn:
    """Do the job that the command line names, in a fork of the worker if one is running; exit with the job's code.

    The code is 0 for success, 2 after a FlexRoundError, 128 + N after signal N, else 1.
    """
    parser().parse_args()
    code = worker.hand_over()
    sys.exit(do_here() if code is None else code)


def do_here() -> int:
    """Do the command line's job in this process, write its time and memory, and return its exit code."""
    from flexround.jobs import execution  # logging and other imports that the worker's clients don't need

    given, start = parser().parse_args(), time.monotonic()
    code = execution.run(target(given.stage), given)
    if given.usage:
        used = resource.getrusage(resource.RUSAGE_SELF)
        found = {"seconds": time.monotonic() - start, "cpu_seconds": used.ru_utime + used.ru_stime}
        found |= {"max_rss_mb": used.ru_maxrss / 1024}
        facts = {name: round(value, 3) for name, value in found.items()} | {"exit": code}
        artifacts.write_text(given.usage, json.dumps(facts) + "\n")
    return code
