"""Which device a job uses: a free GPU under a file lock, or the CPU."""

import contextlib
import datetime
import getpass
import logging
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import filelock
import torch

from flexround.errors import InputError
from flexround.machine import precision
from flexround.machine.hardware import smi

log = logging.getLogger(__name__)
POLL_SECONDS = 1.0
PATIENCE = datetime.timedelta(days=30)  # of a rank whose job waits for its turn
LEAST_DRIVER = 580  # NVIDIA: CUDA 13 runs on drivers of this branch or newer


@contextlib.contextmanager
def lease(asked: int = 0) -> Iterator[torch.device]:
    """Yield a CUDA device that no other job of this machine has leased, or the CPU if there is no GPU.

    Snakemake counts GPUs but does not say which one a job may use, hence the lock per device. The operating system
    frees the lock when the process ends, however it ends. Each rank of a job of several GPUs has a device of its own.

    Args:
        asked: GPUs that the job asked for; 0 takes what there is.

    Raises:
        InputError: there are fewer GPUs than the job asked for.
    """
    require(asked)
    if not torch.cuda.is_available():
        yield torch.device("cpu")
        return
    precision.repeatable()
    directory = Path(tempfile.gettempdir())
    collected = _turn(directory) if "LOCAL_RANK" in os.environ else contextlib.nullcontext(lambda: None)
    with collected as held, lease_one(identities(), directory) as index:
        held()
        if "LOCAL_RANK" in os.environ:  # accelerate takes it for the number of the device
            os.environ["LOCAL_RANK"] = str(index)
        torch.cuda.set_device(index)
        yield torch.device("cuda", index)


def require(asked: int) -> None:
    """Refuse at once to do on the CPU what was planned for a GPU.

    Raises:
        InputError: there are fewer GPUs than ``asked``, with what torch, the driver and nvidia-smi say.
    """
    there = torch.cuda.device_count() if torch.cuda.is_available() else 0
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
def lease_one(names: Sequence[str], directory: Path) -> Iterator[int]:
    """Yield the index of the first of ``names`` whose lock is free, waiting until there is one."""
    index, lock = _first_free([directory / f"flexround-{name.replace('/', '-')}.lock" for name in names])
    try:
        yield index
    finally:
        lock.release()


@contextlib.contextmanager
def _turn(directory: Path) -> Iterator[Any]:
    """Let one job of several ranks at a time collect its devices; yield what a rank calls when it has its own.

    Two such jobs that each held a part of what they need would wait for each other for ever. The first rank holds the
    lock, the others hear from it through torchrun's store.
    """
    store, rank, ranks = next(torch.distributed.rendezvous("env://", timeout=PATIENCE))
    lock = _first_free([directory / "flexround-turn.lock"])[1] if rank == 0 else None
    if lock is not None:
        store.set("flexround/turn", "")
    store.wait(["flexround/turn"], PATIENCE)

    def held() -> None:
        store.add("flexround/held", 1)
        while lock is not None and store.add("flexround/held", 0) < ranks:
            time.sleep(POLL_SECONDS / 10)
        if lock is not None:
            lock.release()

    try:
        yield held
    finally:
        if lock is not None:
            lock.release()


def _first_free(paths: Sequence[Path]) -> tuple[int, filelock.BaseFileLock]:
    """Take the first free lock and return its index, waiting until there is one; who holds them is said once."""
    told = False
    while True:
        for index, path in enumerate(paths):
            lock = filelock.FileLock(path, mode=0o666)
            with contextlib.suppress(filelock.Timeout):
                lock.acquire(timeout=0)
                _sign(path)
                return index, lock
        if not told:
            log.info("waiting for one of: %s", "; ".join(f"{path.stem} ({_holder(path)})" for path in paths))
            told = True
        time.sleep(POLL_SECONDS)


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
