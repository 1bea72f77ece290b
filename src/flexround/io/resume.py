"""What a job has done so far, kept where a killed one finds it again and goes on with the same bits.

A stage says where, whatever takes long saves its parts under names; without a stage nothing is kept.
"""

import contextlib
import contextvars
import functools
import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from flexround.io import artifacts
from flexround.machine import provenance
from flexround.machine.seeding import derive

WORTH_SECONDS = 60.0  # of work that is kept; less is done again sooner than it is written
_directory: contextvars.ContextVar[Path | None] = contextvars.ContextVar("unfinished", default=None)


def fingerprint(device: torch.device, *parts: Any) -> str:
    """Return a hash of all that decides the bits of unfinished work: the machine, its packages, and ``parts``.

    ``parts`` are settings, code and inputs, as JSON can hold them.
    """
    kind = torch.cuda.get_device_name(device) if device.type == "cuda" else torch.backends.cpu.get_cpu_capability()
    found = (parts, provenance.INSTALLED, device.type, kind, torch.get_num_threads())
    return f"{derive(json.dumps(found, sort_keys=True)):016x}"


@contextlib.contextmanager
def kept(directory: Path) -> Iterator[None]:
    """Keep the parts of a job in ``directory``, whose name stands for all that decides their bits.

    It is removed at the end, unless an error or a kill is the end.
    """
    done = directory.with_name(f"{directory.name}.done")
    shutil.rmtree(done, ignore_errors=True)  # of a job that was killed while it removed it
    token = _directory.set(directory)
    try:
        yield
    finally:
        _directory.reset(token)
    if directory.exists():
        os.replace(directory, done)  # half of it would be taken for what was kept
        shutil.rmtree(done, ignore_errors=True)


def worth(since: float) -> bool:
    """Whether what was done since ``time.monotonic()`` said ``since`` is to be kept."""
    return _directory.get() is not None and time.monotonic() - since >= WORTH_SECONDS


def save(name: str, groups: Mapping[str, Mapping[str, Tensor]], **facts: Any) -> None:
    """Keep a part in place of what had its name: tensors of any shape, a file a group, and what JSON can hold."""
    if not (directory := _directory.get()):
        return
    new, old, path = (directory / f"{name}{suffix}" for suffix in (".new", ".old", ""))
    shutil.rmtree(new, ignore_errors=True)
    for group, tensors in groups.items():
        copies = {key: value.detach().cpu().contiguous().clone() for key, value in tensors.items()}
        artifacts.atomic_write(new / f"{group}.safetensors", functools.partial(save_file, copies))
    artifacts.write_manifest(new, [f"{group}.safetensors" for group in groups], kept=facts)
    shutil.rmtree(old, ignore_errors=True)
    if path.exists():
        os.replace(path, old)
    os.replace(new, path)
    shutil.rmtree(old, ignore_errors=True)


def load(name: str) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]] | None:
    """Return the groups and facts of a part, None if it isn't there."""
    directory = _directory.get()
    for path in (directory / name, directory / f"{name}.old") if directory else ():
        if path.exists():
            manifest = artifacts.read_manifest(path)
            groups = {Path(file).stem: load_file(path / file) for file in manifest["files"]}
            return groups, manifest["kept"]
    return None
