"""Which device a job uses: a free GPU or a share of one under file locks, or the CPU."""

import contextlib
import datetime
import getpass
import json
import logging
import math
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import filelock
import torch

from flexround.errors import InputError
from flexround.machine import precision
from flexround.machine.hardware import SHARES, smi

log = logging.getLogger(__name__)
POLL_SECONDS = 1.0
PATIENCE = datetime.timedelta(days=30)  # of a rank whose job waits for its turn
PARTS = max(SHARES)  # of a device, each with a lock
INDICES = "flexround/devices"  # in torchrun's store: the device of each rank
LEAST_DRIVER = 580  # NVIDIA: CUDA 13 runs on drivers of this branch or newer


@contextlib.contextmanager
def lease(asked: int = 0, jobs: int = 1) -> Iterator[torch.device]:
    """Yield a CUDA device that no other job of this machine has leased, or not the same share; the CPU without a GPU.

    Snakemake counts GPUs but does not say which one a job may use, hence the lock per device. The operating system
    frees the lock when the process ends, however it ends. Each rank of a job of several GPUs has a device to itself.

    Args:
        asked: what the job takes of Snakemake's resource ``gpu``, which counts ``jobs`` a GPU; 0 takes what there is.
        jobs: that share a GPU.
    """
    require(asked, jobs)
    if not torch.cuda.is_available():
        yield torch.device("cpu")
        return
    precision.repeatable()
    names, directory, ranks = identities(), Path(tempfile.gettempdir()), "LOCAL_RANK" in os.environ
    with _lease_for_rank(names, directory) if ranks else lease_one(names, directory, 1 if asked > 1 else jobs) as index:
        if ranks:  # accelerate takes it for the number of the device
            os.environ["LOCAL_RANK"] = str(index)
        torch.cuda.set_device(index)
        yield torch.device("cuda", index)


def require(asked: int, jobs: int = 1) -> None:
    """Refuse at once to do on the CPU what was planned for a GPU; ``asked`` and ``jobs`` are those of ``lease``.

    Raises:
        InputError: there are fewer GPUs than the job asked for, with what torch, the driver and nvidia-smi say.
    """
    there = torch.cuda.device_count() if torch.cuda.is_available() else 0
    asked = math.ceil(asked / jobs)
    if there < asked:
        raise InputError(
            f"the job asks for {asked} GPU{'s' if asked > 1 else ''}, torch finds {there}: torch {torch.__version__} "
            f"is built for CUDA {torch.version.cuda}, which needs driver {LEAST_DRIVER}; nvidia-smi: {smi()}; update "
            "the driver, or set `gpu` under `resources` of the scale to what there is (0: the CPU will do)"
        )


def identities() -> list[str]:
    """Return a name of each visible device that all processes of this machine agree on: its UUID.

    Two jobs of a cluster both call their device 0. A slice (MIG) is named as it was given, because some drivers tell
    its GPU's UUID instead.
    """
    given = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    count = torch.cuda.device_count()
    uuids = [f"GPU-{torch.cuda.get_device_properties(index).uuid}" for index in range(count)]
    if len(given) != count:
        return uuids
    return [name if name.startswith("MIG-") else uuid for name, uuid in zip(given, uuids, strict=True)]


@contextlib.contextmanager
def lease_one(names: Sequence[str], directory: Path, jobs: int = 1) -> Iterator[int]:
    """Yield the index of the first of ``names`` that is free, waiting until there is one.

    A job that shares its device with others holds adjacent parts of it, 4 of 12 if there are three ``jobs``. So jobs
    never hold more than the whole together, also if workflows share it among other numbers.
    """
    width = PARTS // jobs
    # The first share of every device, then the second: jobs spread over the devices.
    shares = [(name, range(first, first + width)) for first in range(0, PARTS, width) for name in names]
    wanted = [[_lock(directory, f"{name}.{part}") for part in parts] for name, parts in shares]
    index, held = _first_free(wanted)
    with held:
        yield index % len(names)


def _lock(directory: Path, name: str) -> Path:
    """Return the file that is locked for what is called ``name``."""
    return directory / f"flexround-{name.replace('/', '-')}.lock"


@contextlib.contextmanager
def _lease_for_rank(names: Sequence[str], directory: Path) -> Iterator[int]:
    """Yield the index of the device of this rank; the first rank leases one for each, and the others hear from it.

    One job at a time does so: two that each held a part of what they need would wait for each other for ever.
    """
    store, rank, ranks = next(torch.distributed.rendezvous("env://", timeout=PATIENCE))  # torchrun's
    with contextlib.ExitStack() as held:
        if rank == 0:
            with _first_free([[_lock(directory, "turn")]])[1]:
                indices = [held.enter_context(lease_one(names, directory)) for _ in range(ranks)]
            store.set(INDICES, json.dumps(indices))
        store.wait([INDICES], PATIENCE)
        yield json.loads(store.get(INDICES))[rank]


def _first_free(wanted: Sequence[Sequence[Path]]) -> tuple[int, contextlib.ExitStack]:
    """Take the first list of locks of which all are free, and return its index; wait for it, and say who holds them."""
    told = False
    while True:
        busy = []
        for index, paths in enumerate(wanted):
            try:
                return index, _taken(paths)
            except filelock.Timeout as error:
                busy.append(Path(error.lock_file))
        if not told:
            log.info("waiting for one of: %s", "; ".join(f"{path.stem} ({_holder(path)})" for path in busy))
            told = True
        time.sleep(POLL_SECONDS)


def _taken(paths: Sequence[Path]) -> contextlib.ExitStack:
    """Take all locks.

    Raises:
        filelock.Timeout: one of them is not free; none was taken.
    """
    with contextlib.ExitStack() as held:
        for path in paths:
            held.enter_context(filelock.FileLock(path, mode=0o666).acquire(timeout=0))  # other users lock it, too
        for path in paths:
            _sign(path)
        return held.pop_all()


def _sign(path: Path) -> None:
    """Write beside a lock who holds it, for those who wait; it is no more than a hint."""
    with contextlib.suppress(OSError, KeyError):
        note = path.with_suffix(".holder")
        note.write_text(f"process {os.getpid()} of {getpass.getuser()}: {shlex.join(sys.argv)[:500]}")
        note.chmod(0o666)


def _holder(path: Path) -> str:
    """Return who holds a lock, as far as it is known."""
    try:
        return f"held by {path.with_suffix('.holder').read_text()}"
    except OSError:
        return "holder unknown"
