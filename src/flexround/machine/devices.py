"""Choose a job's device: a free GPU, or a share of a GPU, under a file lock; else the CPU."""

import contextlib
import logging
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import filelock
import torch

from flexround.errors import InputError
from flexround.machine import precision

log = logging.getLogger(__name__)
POLL_SECONDS = 1.0
LEAST_DRIVER = 580  # NVIDIA's driver branch: CUDA 13 needs this or a newer one


@contextlib.contextmanager
def lease(asked: int = 0, jobs: int = 1) -> Iterator[torch.device]:
    """Yield a CUDA device, a share of which no other job of this machine holds; without a GPU, the CPU.

    Snakemake counts GPUs but does not assign them to jobs, so each share of a device has a lock. The operating system
    frees the lock when the process ends, even after a crash.

    Args:
        asked: units of Snakemake's resource ``gpu`` that the job takes; 0 uses a GPU if the machine has one.
        jobs: number of jobs that share a GPU.
    """
    require(asked)
    if not torch.cuda.is_available():
        yield torch.device("cpu")
        return
    precision.repeatable()
    with lease_one(identities(), Path(tempfile.gettempdir()), jobs) as index:
        torch.cuda.set_device(index)
        yield torch.device("cuda", index)


def require(asked: int) -> None:
    """Refuse to run a job on the CPU that was planned for a GPU; ``asked`` as in ``lease``.

    Raises:
        InputError: torch finds no GPU; the message has torch's CUDA version.
    """
    if asked and not torch.cuda.is_available():
        raise InputError(
            f"the job asks for a GPU, torch finds none: torch {torch.__version__} "
            f"is built for CUDA {torch.version.cuda}, which needs driver {LEAST_DRIVER}; compare "
            "with that of nvidia-smi, or set `gpu` under `resources` of the scale to what there is (0: the CPU will do)"
        )


def identities() -> list[str]:
    """Return the UUID of each visible device, a name on which all processes of this machine agree.

    Numbers don't serve: two jobs of a cluster both call their device 0. A slice (MIG) keeps its given name, because
    some drivers report its GPU's UUID instead.
    """
    given = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    count = torch.cuda.device_count()
    uuids = [f"GPU-{torch.cuda.get_device_properties(index).uuid}" for index in range(count)]
    if len(given) != count:
        return uuids
    return [name if name.startswith("MIG-") else uuid for name, uuid in zip(given, uuids, strict=True)]


@contextlib.contextmanager
def lease_one(names: Sequence[str], directory: Path, jobs: int = 1) -> Iterator[int]:
    """Wait for a free share, each device having ``jobs`` shares; yield the index of its device in ``names``."""
    # The first share of every device, then the second: jobs spread over the devices.
    shares = [directory / f"flexround-{name.replace('/', '-')}.{share}.lock" for share in range(jobs) for name in names]
    index, held = _first_free(shares)
    try:
        yield index % len(names)
    finally:
        held.release()


def _first_free(paths: Sequence[Path]) -> tuple[int, filelock.BaseFileLock]:
    """Wait until a lock is free; take the first free lock and return its index and the lock."""
    told = False
    while True:
        for index, path in enumerate(paths):
            held = filelock.FileLock(path, mode=0o666)  # other users lock the same file
            with contextlib.suppress(filelock.Timeout):
                held.acquire(timeout=0)
                return index, held
        if not told:
            log.info("waiting for one of: %s", ", ".join(map(str, paths)))
            told = True
        time.sleep(POLL_SECONDS)
