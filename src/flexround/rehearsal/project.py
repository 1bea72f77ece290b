"""The directory in which a rehearsal runs: a copy of the project, its small scale, and the stand-ins."""

import shutil
from pathlib import Path
from typing import Any

import yaml

from flexround.errors import InputError
from flexround.io import sources
from flexround.rehearsal import data, networks, scale
from flexround.settings import layout
from flexround.settings.layout import PARAMS, ROOT
from flexround.settings.load import is_path, load_params
from flexround.settings.params import Params
from flexround.settings.sources import Source
from flexround.settings.validation import read_yaml

COPIED = ("Snakefile", "src", "params", "workflow", "profiles")
MARK = ".rehearsal"  # a directory with this file may be written over


def build(directory: Path, scale_name: str, gpu: int = 0) -> Params:
    """Copy the project to ``directory`` and put the small scale and the stand-ins there; return the scale's settings.

    Results of an earlier rehearsal stay, so that it goes on.

    Raises:
        InputError: the directory holds something else.
        SettingsError: the scale has a task, network or data set for which there is no stand-in.
    """
    if directory.exists() and any(directory.iterdir()) and not (directory / MARK).exists():
        raise InputError(f"{directory}: is not empty and no rehearsal; choose another directory")
    directory.mkdir(parents=True, exist_ok=True)
    (directory / MARK).write_text("A rehearsal: stand-ins, no results.\n")
    copy(directory)
    path = PARAMS / "scales" / f"{scale.NAME}.yaml"
    if path.exists():
        raise InputError(f"{path}: this name is the rehearsal's; rename the scale")
    place = directory / path.relative_to(ROOT)
    base = str(Path(scale_name).resolve()) if is_path(scale_name) else scale_name
    place.write_text(yaml.safe_dump(scale.smaller(load_params(scale_name), base, gpu), sort_keys=False))
    params = load_params(str(place))
    stand_ins(params, directory / layout.SOURCES)
    _pin(directory, params)
    return params


def copy(directory: Path, project: Path = ROOT) -> Path:
    """Copy what a run of a project needs but sources, in place of an earlier copy; return ``directory``."""
    directory.mkdir(parents=True, exist_ok=True)
    for name in COPIED:
        target = directory / name
        if (project / name).is_dir():
            shutil.rmtree(target, ignore_errors=True)
            unread = shutil.ignore_patterns("__pycache__", "*.egg-info")
            shutil.copytree(project / name, target, symlinks=True, ignore=unread)
        else:
            shutil.copy2(project / name, target)
    return directory


def stand_ins(params: Params, directory: Path) -> None:
    """Write a stand-in of every source that a scale reads, unless it is there; ``directory`` is that of all sources."""
    for checkpoint in params.scale.checkpoints.values():
        if checkpoint.source:
            _make(params.sources[checkpoint.source], directory, networks.write, checkpoint)
        if checkpoint.adapter:
            _make(params.sources[checkpoint.adapter], directory, networks.write_adapter, checkpoint)
    for name in _data_sets(params):
        _make(params.sources[name], directory, data.write, name)


def _data_sets(params: Params) -> list[str]:
    """Return the data sets that a scale reads: those that are fetched, and those that a task finds by its ``root``."""
    fetched = [name for task in params.scale.tasks.values() for name in task.sources]
    roots = {task.options.get("root") for task in params.scale.tasks.values()}
    by_root = [name for name, source in params.sources.items() if source.kind == "dataset" and source.file in roots]
    return list(dict.fromkeys(fetched + by_root))


def _make(source: Source, directory: Path, write: Any, what: Any) -> None:
    """Write a stand-in whole, or not at all."""
    path = directory / source.file
    if path.exists():
        return
    temporary = path.with_name(f".{path.name}.partial")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.unlink(missing_ok=True)
    write(what, source, temporary)
    temporary.rename(path)


def _pin(directory: Path, params: Params) -> None:
    """Let the copy's pins be those of the stand-ins: they are verified as the real files are."""
    place = directory / "params/sources.yaml"
    rows = read_yaml(PARAMS / "sources.yaml")
    for name, source in params.sources.items():
        path = directory / layout.SOURCES / source.file
        if not path.exists() or (path.is_dir() and not source.files):
            continue
        found = sources.digest(path)
        if source.sha256:
            rows[name]["sha256"] = found
        if source.bytes:
            rows[name]["bytes"] = sources.size(path)
        if source.revision.startswith(sources.PREFIX):
            rows[name]["revision"] = sources.PREFIX + found[:8]
    place.write_text(yaml.safe_dump(rows, sort_keys=False))
