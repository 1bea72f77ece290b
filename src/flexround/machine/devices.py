"""Which device a job uses: a free GPU or a share of it under a file lock, or the CPU."""

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
LEAST_DRIVER = 580  # NVIDIA: CUDA 13 runs on drivers of this branch or newer


@contextlib.contextmanager
def lease(asked: int = 0, jobs: int = 1) -> Iterator[torch.device]:
    """Yield a CUDA device of which no other job of this machine holds the same share; the CPU without a GPU.

    Snakemake counts GPUs but does not say which one a job may use, hence a lock for each share of a device. The
    operating system frees the lock when the process ends, however it ends.

    Args:
        asked: shares that the job takes of Snakemake's resource ``gpu``; 0 takes a GPU if there is one.
        jobs: that share a GPU.
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
    """Refuse at once to do on the CPU what was planned for a GPU; ``asked`` as in ``lease``.

    Raises:
        InputError: there is no GPU, with the CUDA version of torch.
    """
    if asked and not torch.cuda.is_available():
        raise InputError(
            f"the job asks for a GPU, torch finds none: torch {torch.__version__} "
            f"is built for CUDA {torch.version.cuda}, which needs driver {LEAST_DRIVER}; compare "
            "with that of nvidia-smi, or set `gpu` under `resources` of the scale to what there is (0: the CPU will do)"
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
    """Yield the index of the first of ``names`` with a free share, one of ``jobs``; wait until there is one."""
    # The first share of every device, then the second: jobs spread over the devices.
    shares = [directory / f"flexround-{name.replace('/', '-')}.{share}.lock" for share in range(jobs) for name in names]
    index, held = _first_free(shares)
    try:
        yield index % len(names)
    finally:
        held.release()


def _first_free(paths: Sequence[Path]) -> tuple[int, filelock.BaseFileLock]:
    """Take the first lock that is free and return its index; wait until there is one."""
    told = False
    while True:
        for index, path in enumerate(paths):
            held = filelock.FileLock(path, mode=0o666)  # other users lock it, too
            with contextlib.suppress(filelock.Timeout):
                held.acquire(timeout=0)
                return index, held
        if not told:
            log.info("waiting for one of: %s", ", ".join(map(str, paths)))
            told = True
        time.sleep(POLL_SECONDS)
