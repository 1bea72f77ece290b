"""What unfinished work of a job depends on beside its fingerprint (io/resume.py)."""

import contextlib
import json
from importlib import metadata
from pathlib import Path

from flexround.jobs import codefile
from flexround.machine.seeding import derive

DECISIVE = ("torch", "torchvision", "transformers", "numpy", "lm_eval")  # other versions can move a number


def surroundings(job: Path) -> str:
    """Return a hash of what decides a job's bits beside its fingerprint (io/resume.py): packages, and files it reads.

    Not there, where it would make all results stale.
    """
    files: dict[str, list[str]] = {}
    with contextlib.suppress(Exception):  # the job says what is wrong with its file
        files = {name: known for name, known in codefile.Code(job).files.items() if not name.endswith(".py")}
    versions = [metadata.version(name) for name in DECISIVE]
    return f"{derive(json.dumps([versions, files], sort_keys=True)):016x}"
