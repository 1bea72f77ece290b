"""The unfinished work of a job, saved in parts, from which a killed job resumes with bit-identical results.

A stage sets the directory, where long work saves named parts. Outside a stage nothing is saved. A part is one file,
renamed into place when it is complete: a kill at any moment leaves either the old or the new part.
"""

import contextlib
import contextvars
import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from flexround.io import artifacts
from flexround.machine import provenance
from flexround.machine.seeding import derive

WORTH_SECONDS = 60.0  # least work worth saving; repeating shorter work is faster than writing it
FACTS = "facts"  # the only key of a file's metadata
_directory: contextvars.ContextVar[Path | None] = contextvars.ContextVar("unfinished", default=None)


def fingerprint(device: torch.device, *parts: Any) -> str:
    """Return a hash of all facts that decide the bits of unfinished work: the machine, its packages, and ``parts``.

    ``parts`` are settings, code and inputs, as JSON can hold them.
    """
    kind = torch.cuda.get_device_name(device) if device.type == "cuda" else torch.backends.cpu.get_cpu_capability()
    found = (parts, provenance.INSTALLED, device.type, kind, torch.get_num_threads())
    return f"{derive(json.dumps(found, sort_keys=True)):016x}"


@contextlib.contextmanager
def kept(directory: Path) -> Iterator[None]:
    """Keep a job's parts in ``directory``, whose name is a hash of all facts that decide their bits.

    The directory is removed at the end, except after an error or a kill.
    """
    done = directory.with_name(f"{directory.name}.done")
    shutil.rmtree(done, ignore_errors=True)  # left by a job that was killed while it removed the directory
    token = _directory.set(directory)
    try:
        yield
    finally:
        _directory.reset(token)
    if directory.exists():
        os.replace(directory, done)  # a half-removed directory would look like unfinished work
        shutil.rmtree(done, ignore_errors=True)


def worth(since: float) -> bool:
    """Whether work since ``since``, seconds of ``time.monotonic()``, took long enough to be saved."""
    return _directory.get() is not None and time.monotonic() - since >= WORTH_SECONDS


def save(name: str, tensors: Mapping[str, Tensor], **facts: Any) -> None:
    """Save a named part, replacing an older one: tensors of any shape, and facts that JSON can hold."""
    if not (directory := _directory.get()):
        return
    there = {key: value.detach().cpu().contiguous() for key, value in tensors.items()}
    metadata = {FACTS: json.dumps(facts)}
    artifacts.atomic_write(_file(directory, name), lambda path: save_file(there, path, metadata))


def load(name: str) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """Return a part's tensors, on the CPU, and its facts; None if the part was not saved."""
    directory = _directory.get()
    if directory is None or not _file(directory, name).exists():
        return None
    with safe_open(_file(directory, name), "pt") as file:
        return {key: file.get_tensor(key) for key in file.keys()}, json.loads(file.metadata()[FACTS])  # noqa: SIM118


def _file(directory: Path, name: str) -> Path:
    return directory / f"{name}.safetensors"
