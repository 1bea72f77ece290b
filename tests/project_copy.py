"""A copy of the project for running a workflow."""

import shutil
from pathlib import Path

from flexround.settings.layout import ROOT

COPIED = ("Snakefile", "src", "params", "workflow", "profiles")


def copy(directory: Path, project: Path = ROOT) -> Path:
    """Copy all files that a run needs except downloaded sources; return ``directory``."""
    directory.mkdir(parents=True, exist_ok=True)
    for name in COPIED:
        if (project / name).is_dir():
            unread = shutil.ignore_patterns("__pycache__", "*.egg-info")
            shutil.copytree(project / name, directory / name, symlinks=True, ignore=unread)
        else:
            shutil.copy2(project / name, directory / name)
    return directory
