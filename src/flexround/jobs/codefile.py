"""The code file: digests of the code that a job can import. A job compares itself with the file. No torch here.

The Snakefile writes the code file before the run. A digest of all code is part of its name, which the job file holds:
so an edit reruns the jobs that can import the edited file. The file has the sha256 of the whole files as well. A job
compares these, which takes a millisecond, and reads the syntax tree of a file whose sha256 differs: the edit may be a
comment.
"""

import functools
import json
import sys
from importlib import metadata
from pathlib import Path

from flexround.errors import InputError
from flexround.io import artifacts
from flexround.machine.seeding import derive
from flexround.settings import reach
from flexround.settings.layout import ROOT

DECISIVE = ("torch", "torchvision", "transformers", "numpy", "lm_eval")  # other versions can move a number


@functools.cache
def contents(*starts: str, files: tuple[str, ...] = ()) -> tuple[str, str]:
    """Return a digest of the code, to which a user's file gives its name alone, since it may be moved, and a code file.

    Args:
        *starts: ``package.module`` or ``package.module:name`` of all code that the job starts with.
        files: other files of the project that the job reads, relative to the project.
    """
    modules = reach.closure(*starts)
    files += tuple(str(_place(path)) for module in modules for path in module.sources)
    others = {name: (_sha256(name), _sha256(name)) for name in files}
    digests = {str(module.path): (module.sha256, module.digest) for module in modules} | others
    content = {"modules": [module.name for module in modules], "files": digests}
    code = sorted({(str(_place(module.path)), module.digest) for module in modules})
    return f"{derive(code, others):016x}", json.dumps(content)


def _place(path: Path) -> Path | str:
    """Return how a file of code is named: relative to the project, or by its name alone."""
    return path.relative_to(ROOT) if path.is_relative_to(ROOT) else path.name


def _sha256(name: str) -> str:
    """Return the sha256 of a file, relative to the project or not; nothing for a missing file."""
    return artifacts.sha256(ROOT / name) if (ROOT / name).is_file() else ""


class Code:
    """The code of a job that begins, as it was planned; ``modules`` are all that the job can import."""

    def __init__(self, job: Path) -> None:
        """Read the code file that a job file names. A job file may name none."""
        content = artifacts.read_json(job)
        named = content.get("code") if isinstance(content, dict) else None  # the stage refuses what is no job file
        planned = artifacts.read_json(Path(named)) if isinstance(named, str) else {"modules": [], "files": {}}
        self.modules, self.files = planned["modules"], planned["files"]
        self.begun = self._times()
        for name in self.files:
            reach.compare_bytecode(ROOT / name)  # that of this Python, which need not be Snakemake's

    @property
    def surroundings(self) -> str:
        """A hash of the packages, which decide a job's bits beside its fingerprint (io/resume.py)."""
        return f"{derive(*map(metadata.version, DECISIVE)):016x}"

    def check(self, imported: bool = False) -> None:
        """Compare the files with the plan, after the imports also with the times at which this object was made.

        Raises:
            InputError: code that the job can import has changed, or may have been another while it was imported.
        """
        changed = [name for name, planned in self.files.items() if _edited(name, *planned)]
        if imported:
            self._check_places()
            changed += [name for name, time in self._times().items() if time != self.begun[name]]
        if changed:
            raise InputError(
                f"{_place(Path(changed[0]))}: the code has changed since this run was planned; "
                "run the same command again"
            )

    def _check_places(self) -> None:
        """Raise InputError for a module that was imported from another file than the one that was planned."""
        planned = {(ROOT / name).resolve() for name in self.files}
        for name in self.modules:
            file = getattr(sys.modules.get(name), "__file__", None)
            if file and Path(file).resolve() not in planned:
                raise InputError(f"{file}: runs in the place of the planned module {name}; rename or delete this file")

    def _times(self) -> dict[str, int]:
        """Return file -> the time at which the system last changed it, which no program can set."""
        return {name: (ROOT / name).stat().st_ctime_ns if (ROOT / name).exists() else 0 for name in self.files}


def _edited(name: str, sha256: str, digest: str) -> bool:
    """Whether a file differs from the plan in more than comments, docstrings and layout."""
    if _sha256(name) == sha256:
        return False
    path = ROOT / name
    return path.suffix != ".py" or not path.is_file() or reach.digest(reach.parsed(path, path.read_bytes())) != digest
