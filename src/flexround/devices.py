"""Which device a job uses: a free GPU under a file lock, or the CPU."""

import contextlib
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import filelock
import torch

POLL_SECONDS = 1.0


@contextlib.contextmanager
def lease() -> Iterator[torch.device]:
    """Yield a CUDA device that no other job of this machine has leased, or the CPU if there is no GPU.

    Snakemake counts GPUs but does not say which one a job may use, hence the lock per device. The operating system
    frees the lock when the process ends, however it ends.
    """
    if not torch.cuda.is_available():
        yield torch.device("cpu")
        return
    if "LOCAL_RANK" in os.environ:  # torchrun shares the job's devices out among its processes
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        yield torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        return
    names = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    if len(names) != torch.cuda.device_count():
        names = [str(index) for index in range(torch.cuda.device_count())]
    with lease_one(names, Path(tempfile.gettempdir())) as index:
        torch.cuda.set_device(index)
        yield torch.device("cuda", index)


@contextlib.contextmanager
def lease_one(names: Sequence[str], directory: Path) -> Iterator[int]:
    """Yield the index of the first of ``names`` whose lock is free, waiting until there is one."""
    while True:
        for index, name in enumerate(names):
            lock = filelock.FileLock(directory / f"flexround-gpu-{name}.lock", mode=0o666)
            try:
                lock.acquire(timeout=0)
            except filelock.Timeout:
                continue
            try:
                yield index
                return
            finally:
                lock.release()
        time.sleep(POLL_SECONDS)
