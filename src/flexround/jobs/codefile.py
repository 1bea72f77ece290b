"""The code file: hashes of the code that a job can reach. A job compares itself with the file. No torch here.

The Snakefile writes the code file before the run. The file is an input of the rule, so an edit reruns the jobs that
reach it. ``sources.json`` beside it has the sha256 of the whole files. A job compares these hashes, which takes a
millisecond, and reads the code only where one of them differs: the edit may be a comment.
"""

import json
from pathlib import Path

from flexround.errors import InputError
from flexround.io import artifacts
from flexround.settings import reach
from flexround.settings.layout import ROOT

SOURCES = "sources.json"


def contents(*starts: str, files: tuple[str, ...] = ()) -> tuple[str, str]:
    """Return the text of a code file, where a user's file has its name alone, since it may be moved, and of SOURCES.

    Args:
        *starts: ``package.module:name`` of all code that the job starts with.
        files: other files of the project that the job reads, relative to the project.

    Raises:
        SettingsError: a file with a syntax error.
    """
    found = sorted(reach.walked(*starts).items(), key=lambda item: item[0].path)
    hashes = {str(module.path): module.sha256 for module, _ in found} | {name: _sha256(name) for name in files}
    places = [
        path.relative_to(ROOT) if (path := module.path).is_relative_to(ROOT) else path.name for module, _ in found
    ]
    text = "".join(f"{digest}  {place}\n" for place, (_, digest) in zip(places, found, strict=True))
    return text, json.dumps({"starts": starts, "modules": [module.name for module, _ in found], "sha256": hashes})


def _sha256(name: str) -> str:
    """Return the sha256 of a file, relative to the project or not; nothing for a missing file."""
    return artifacts.sha256(ROOT / name) if (ROOT / name).is_file() else ""


class Code:
    """The code of a job that begins, as the code file of its run has it; ``modules`` are all that the job can reach."""

    def __init__(self, job: Path) -> None:
        """Read the code file that a job file names. A job file may name none.

        Raises:
            InputError: a file is missing or damaged.
        """
        content = artifacts.read_json(job)
        named = content.get("code") if isinstance(content, dict) else None
        path = Path(named) if isinstance(named, str) else None  # the stage says what is wrong with a job file
        self.lines = set(artifacts.read_text(path).splitlines()) if path else set()
        sources = artifacts.read_json(path.with_name(SOURCES)) if path else {}
        self.starts, self.modules, self.sha256 = (sources.get(key, {}) for key in ("starts", "modules", "sha256"))
        self.begun = self._times()

    def check(self, imported: bool = False) -> None:
        """Compare the files with the code file, after the imports also with the times at which this object was made.

        Raises:
            InputError: code that the job can reach has changed, or may have been another while it was imported.
        """
        changed = self._changed()
        if imported:
            changed += [name for name, time in self._times().items() if time != self.begun[name]]
        if changed:
            raise InputError(
                f"{changed[0]}: the code has changed since this run was planned; run the same command again"
            )

    def _times(self) -> dict[str, int]:
        """Return file -> the time at which the system last changed it, which no program can set."""
        return {name: (ROOT / name).stat().st_ctime_ns if (ROOT / name).exists() else 0 for name in self.sha256}

    def _changed(self) -> list[str]:
        """Return the files that no longer hold what the code file says; comments and layout don't count."""
        differ = [name for name, digest in self.sha256.items() if _sha256(name) != digest]
        if differ and all(name.endswith(".py") for name in differ):
            reach.read_module.cache_clear()
            return sorted(line.partition("  ")[2] for line in self.lines ^ {*contents(*self.starts)[0].splitlines()})
        return differ
