"""State on disk after every block, so that a killed job continues at the next block with the same bits.

A state directory belongs to one fingerprint (model, samples, settings, code). ``progress.json`` is renamed into place
last and lists the sha256 of every file it relies on: whatever a kill leaves behind beside it is ignored.
"""

import functools
import logging
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import filelock
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from flexround import artifacts
from flexround.errors import InputError
from flexround.reconstruct.cache import SUFFIX, Store, file_of, mapped, pieces

log = logging.getLogger(__name__)
PROGRESS = "progress.json"


class State:
    """The finished blocks of one reconstruction and the activations carried to the next.

    Attributes:
        entries: one dict per finished block: ``position`` (phase/block), ``file``, its ``sha256``, ``facts``.
        carried: one dict per carried cache: ``file``, its ``sha256``, ``shape``, ``dtype``.
    """

    def __init__(self, directory: Path, fingerprint: str) -> None:
        self.directory = directory / fingerprint[:16]
        self.fingerprint = fingerprint
        self.entries: list[dict[str, Any]] = []
        self.carried: dict[str, dict[str, Any]] = {}

    @contextmanager
    def opened(self) -> Iterator["State"]:
        """Lock the directory, read what is there, and remove everything after a successful end.

        Raises:
            InputError: another process works on this run, or the state belongs to another run.
        """
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{self.directory}: can't be made ({error.strerror}); choose another --state") from error
        lock = filelock.FileLock(self.directory / "lock")
        try:
            lock.acquire(timeout=0)
        except filelock.Timeout as error:
            raise InputError(
                f"{self.directory}: another process is reconstructing this run; wait or stop it"
            ) from error
        with lock:
            self._read()
            self._drop_caches()
            yield self
        shutil.rmtree(self.directory.parent, ignore_errors=True)

    def _read(self) -> None:
        """Take over the finished blocks, refusing a foreign state and dropping a damaged one with a message."""
        others = [path.name for path in self.directory.parent.iterdir() if path != self.directory]
        if others:
            log.info("%s: state of other settings or code is there and not used: %s", self.directory.parent, others)
        if not (self.directory / PROGRESS).exists():
            return
        try:
            progress = artifacts.read_json(self.directory / PROGRESS)
            foreign = progress["fingerprint"] != self.fingerprint
            files = [*progress["entries"], *progress["carried"].values()]
            damaged = None if foreign else self._first_damage(files)
        except (InputError, KeyError, TypeError) as error:
            foreign, damaged = False, f"{PROGRESS} is not readable ({error})"
        if foreign:
            raise InputError(
                f"{self.directory}: this state belongs to another run (fingerprint {progress['fingerprint'][:16]}...); "
                "it is not touched: move it away or delete it"
            )
        if damaged:
            log.warning("%s: damaged state (%s); starting this run again from its first block", self.directory, damaged)
            (self.directory / PROGRESS).unlink()
            return
        self.entries, self.carried = progress["entries"], progress["carried"]
        log.info("resuming after block %s", self.entries[-1]["position"])

    def _first_damage(self, files: list[dict[str, Any]]) -> str | None:
        """Return what is wrong with the files, or None."""
        for facts in files:
            path = self.directory / facts["file"]
            if not path.exists():
                return f"{path.name} is missing"
            if artifacts.sha256(path) != facts["sha256"]:
                return f"{path.name} has changed"
        return None

    def commit(
        self, position: str, tensors: dict[str, Tensor], carry: dict[str, Tensor], facts: dict[str, Any]
    ) -> None:
        """Record a finished block: its results, and the activations that replace those carried so far.

        Args:
            position: ``phase/block``, or another word.
            tensors: on the CPU, written as they are.
            carry: caches; what is a file in this directory stays that file.
            facts: reproducible values but for the record.
        """
        stem = position.replace("/", "-")
        file = f"{stem}.safetensors"
        artifacts.atomic_write(self.directory / file, functools.partial(save_file, tensors))
        self.carried = {name: self._keep(f"{stem}.{name}{SUFFIX}", value) for name, value in carry.items()}
        digest = artifacts.sha256(self.directory / file)
        self.entries.append({"position": position, "file": file, "sha256": digest, "facts": facts})
        progress = {"fingerprint": self.fingerprint, "entries": self.entries, "carried": self.carried}
        artifacts.write_json(self.directory / PROGRESS, progress)
        self._drop_caches()

    def _drop_caches(self) -> None:
        """Delete the caches that are not carried on."""
        kept = {facts["file"] for facts in self.carried.values()}
        for path in self.directory.glob(f"*{SUFFIX}"):
            if path.name not in kept:
                path.unlink()

    def _keep(self, name: str, value: Tensor) -> dict[str, Any]:
        """Make sure that a cache is in a file of this directory; return what is needed to read it back."""
        path = file_of(value)
        if path is None or not path.parent.samefile(self.directory):
            path = self.directory / name
            artifacts.atomic_write(path, functools.partial(_write, value))
        shape, kind = list(value.shape), str(value.dtype).removeprefix("torch.")
        return {"file": path.name, "sha256": artifacts.sha256(path), "shape": shape, "dtype": kind}

    def tensors(self, entry: dict[str, Any]) -> dict[str, Tensor]:
        """Return the results of a finished block."""
        return load_file(self.directory / entry["file"])

    def carry(self, store: Store) -> dict[str, Tensor]:
        """Return the activations carried out of the last finished block."""
        found = {}
        for name, facts in self.carried.items():
            file = mapped(self.directory / facts["file"], torch.Size(facts["shape"]), getattr(torch, facts["dtype"]))
            found[name] = file if store.directory == self.directory else store.copy(file)
        return found


def _write(value: Tensor, path: Path) -> None:
    """Write a cache as it lies in memory."""
    with open(path, "wb") as file:
        for piece in pieces(value):
            file.write(piece)
