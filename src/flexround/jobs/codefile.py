"""The code file: hashes of the code that a job can reach. A job compares itself with the file. No torch here.

The Snakefile writes the code file before the run. The file is an input of the rule, so an edit reruns the jobs that
reach it. ``sources.json`` beside it has the sha256 of the whole files. A job compares these hashes, which takes a
millisecond, and reads the code only where one of them differs: the edit may be a comment.
"""

import hashlib
import json
from pathlib import Path

from flexround import artifacts
from flexround.errors import InputError
from flexround.settings import reach
from flexround.settings.layout import ROOT


def sources_of(path: Path) -> Path:
    """Return the place of the hashes of the whole files, beside a code file."""
    return path.with_name("sources.json")


def contents(*starts: str, files: tuple[str, ...] = ()) -> tuple[str, str]:
    """Return the text of a code file and of the file beside it.

    Args:
        *starts: ``package.module:name`` of all code that the job starts with.
        files: other files of the project that the job reads, relative to the project.

    Raises:
        SettingsError: a file with a syntax error.
    """
    found = sorted(reach.walked(*starts).items(), key=lambda item: item[0].path)
    hashes = {str(module.path): module.sha256 for module, _ in found} | {name: _sha256(name) for name in files}
    sources = {"starts": starts, "modules": [module.name for module, _ in found], "sha256": hashes}
    text = "".join(f"{digest}  {_name(module.path)}\n" for module, digest in found)
    return text, json.dumps(sources, indent=1) + "\n"


def _name(path: Path) -> str:
    """Return a file relative to the project; a user's file by its name alone, since it may be moved."""
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else path.name


def _sha256(name: str) -> str:
    """Return the sha256 of a file, relative to the project or not; nothing for a missing file."""
    path = ROOT / name
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""


class Code:
    """The code of a job that begins, as the code file of its run has it.

    Attributes:
        modules: all modules of the project and of the user that the job can reach.
    """

    def __init__(self, job: Path) -> None:
        """Read the code file that a job file names; a job without a code file has nothing to compare.

        Raises:
            InputError: a file is missing or damaged.
        """
        content = artifacts.read_json(job)
        path = content.get("code") if isinstance(content, dict) else None
        self.text = artifacts.read_text(Path(path)) if path else ""
        sources = artifacts.read_json(sources_of(Path(path))) if path else {"starts": [], "modules": [], "sha256": {}}
        self.starts, self.modules, self.sha256 = sources["starts"], sources["modules"], sources["sha256"]
        self.begun = self._times()

    def check(self, begun: bool = False) -> None:
        """Compare the files with the code file.

        Args:
            begun: refuse a file that was written since this object was made, too: a module that was imported
                meanwhile may have had another text.

        Raises:
            InputError: code that the job can reach has changed; the message names the file.
        """
        changed = self._changed()
        if not changed and begun and self._times() != self.begun:
            changed = [name for name, time in self._times().items() if time != self.begun[name]]
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
            lines = {*contents(*self.starts)[0].splitlines()} ^ {*self.text.splitlines()}
            return sorted({line.partition("  ")[2] for line in lines})
        return differ
