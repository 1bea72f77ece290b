"""The unfinished work of a job, kept in parts with which a killed job resumes and gives the same bits.

A stage names the directory, and long work saves its parts there under names. Without a stage nothing is kept. A part
is one file, renamed into place when it is whole: so a kill at any moment leaves the part before or the part after.
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
from flexround.machine.seeding import derive

WORTH_SECONDS = 60.0  # of work that is kept; less is done again sooner than it is written
FACTS = "facts"  # the only key of a file's metadata
_directory: contextvars.ContextVar[Path | None] = contextvars.ContextVar("unfinished", default=None)


def fingerprint(job: Any, inputs: Any, device: torch.device) -> str:
    """Return a hash of all that decides the bits of a job: its settings and code, what it reads and where it runs.

    ``inputs`` are the files that it reads with their hashes, or anything else that JSON can hold.
    """
    kind = torch.cuda.get_device_name(device) if device.type == "cuda" else torch.backends.cpu.get_cpu_capability()
    machine = (device.type, kind, torch.get_num_threads())
    settings = job.model_dump_json(exclude=set(job.explained))  # with the name of the code file, which is a digest
    return f"{derive(settings, json.dumps(inputs, sort_keys=True), torch.__version__, *machine):016x}"


@contextlib.contextmanager
def kept(directory: Path) -> Iterator[None]:
    """Keep the parts of a job in ``directory``, whose name is a hash of all that decides their bits.

    It is removed at the end, unless an error or a kill is the end.
    """
    done = directory.with_name(f"{directory.name}.done")
    shutil.rmtree(done, ignore_errors=True)  # left by a job that was killed while it removed the directory
    token = _directory.set(directory)
    try:
        yield
    finally:
        _directory.reset(token)
    if directory.exists():
        os.replace(directory, done)  # a half-removed directory would be taken for unfinished work
        shutil.rmtree(done, ignore_errors=True)


def worth(since: float) -> bool:
    """Whether work done since ``since``, seconds of ``time.monotonic()``, took long enough to be kept."""
    return _directory.get() is not None and time.monotonic() - since >= WORTH_SECONDS


def save(name: str, tensors: Mapping[str, Tensor], **facts: Any) -> None:
    """Keep a part instead of an earlier one of this name: tensors of any shape, and facts that JSON can hold."""
    if not (directory := _directory.get()):
        return
    there = {key: value.detach().cpu().contiguous() for key, value in tensors.items()}
    metadata = {FACTS: json.dumps(facts)}
    artifacts.atomic_write(_file(directory, name), lambda path: save_file(there, path, metadata))


def load(name: str) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """Return the tensors, on the CPU, and the facts of a part; None if it was not saved."""
    directory = _directory.get()
    if directory is None or not _file(directory, name).exists():
        return None
    with safe_open(_file(directory, name), "pt") as file:
        return {key: file.get_tensor(key) for key in file.keys()}, json.loads(file.metadata()[FACTS])  # noqa: SIM118


def _file(directory: Path, name: str) -> Path:
    return directory / f"{name}.safetensors"
