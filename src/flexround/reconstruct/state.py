"""State on disk, so that a killed job continues at a later block with the same bits.

A state directory belongs to one fingerprint (model, samples, settings, code). ``progress.json`` is renamed into place
last and lists the sha256 of every file it relies on: whatever a kill leaves behind beside it is ignored.
"""

import contextlib
import functools
import logging
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import filelock
import torch
from torch import Tensor

from flexround.errors import InputError
from flexround.io import artifacts
from flexround.reconstruct import codes
from flexround.reconstruct.cache import Store, order_of, read, write
from flexround.reconstruct.codes import Part

log = logging.getLogger(__name__)
PROGRESS, SUFFIX = "progress.json", ".cache"


class State:
    """The finished blocks of one reconstruction and the activations carried to the next.

    Args:
        directory: holds a directory for each fingerprint.
        fingerprint: of all that decides the bits of the result.

    Attributes:
        entries: one dict per finished block: ``position`` (phase/block), ``file``, its ``sha256``, and ``record`` of a
            block's work.
        carried: one dict per carried cache: ``file``, its ``sha256``, ``shape``, ``dtype``, and the ``order`` of its
            dimensions in memory.
    """

    def __init__(self, directory: Path, fingerprint: str) -> None:
        self.directory = directory / fingerprint[:16]
        self.fingerprint = fingerprint
        self.entries: list[dict[str, Any]] = []
        self.carried: dict[str, dict[str, Any]] = {}

    @contextlib.contextmanager
    def opened(self) -> Iterator["State"]:
        """Lock the directory, read what is there, and remove it after a successful end.

        Raises:
            InputError: another process works on this run, or the directory can't be made.
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
            self._drop_others()
            yield self
        shutil.rmtree(self.directory, ignore_errors=True)
        with contextlib.suppress(OSError):  # what other settings or code left there is theirs, and may be at work
            self.directory.parent.rmdir()

    def _read(self) -> None:
        """Take over the finished blocks; drop a damaged state with a message."""
        others = [path.name for path in self.directory.parent.iterdir() if path != self.directory]
        if others:
            log.info("%s: state of other settings or code is there and not used: %s", self.directory.parent, others)
        path = self.directory / PROGRESS
        if not path.exists():
            return
        try:
            progress = artifacts.read_formatted(path)
            damage = self._first_damage(progress)
        except (InputError, KeyError, TypeError) as error:
            damage = f"{PROGRESS} is not readable ({error})"
        if damage:
            log.warning("%s: damaged state (%s); starting this run again from its first block", self.directory, damage)
            path.unlink()
            return
        self.entries, self.carried = progress["entries"], progress["carried"]
        log.info("resuming after block %s", self.entries[-1]["position"])

    def _first_damage(self, progress: dict[str, Any]) -> str | None:
        """Return what is wrong with the state or the files that it relies on, or None."""
        if progress["fingerprint"] != self.fingerprint:
            return "it is another run's"
        for facts in [*progress["entries"], *progress["carried"].values()]:
            path = self.directory / facts["file"]
            if not path.exists():
                return f"{path.name} is missing"
            if artifacts.sha256(path) != facts["sha256"]:
                return f"{path.name} has changed"
        return None

    def commit(self, position: str, part: Part, carry: dict[str, Tensor], record: dict[str, Any] | None = None) -> None:
        """Write a finished block: its results, and the activations that replace those carried so far.

        Args:
            position: ``phase/block``, or another word.
            part: the block's result.
            carry: caches (N, ...); none after the last block of a phase.
            record: of the block's work; None for the tensors outside all blocks.

        Raises:
            InputError: no room on the disk.
        """
        entry = _entry(position, record)
        artifacts.write_bytes(self.directory / entry["file"], codes.encode(part))
        entry["sha256"] = artifacts.sha256(self.directory / entry["file"])
        self.entries.append(entry)
        stem = position.replace("/", "-")
        self.carried = {name: self._keep(f"{stem}.{name}{SUFFIX}", value) for name, value in carry.items()}
        progress = {"fingerprint": self.fingerprint, "entries": self.entries, "carried": self.carried}
        artifacts.write_formatted(self.directory / PROGRESS, progress)
        self._drop_others()

    def _drop_others(self) -> None:
        """Remove the caches that nothing relies on."""
        kept = {facts["file"] for facts in self.carried.values()}
        for path in self.directory.glob(f"*{SUFFIX}"):
            if path.name not in kept:
                path.unlink()

    def _keep(self, name: str, value: Tensor) -> dict[str, Any]:
        """Write a cache; return what is needed to read it back."""
        path = self.directory / name
        artifacts.atomic_write(path, functools.partial(write, value))
        facts = {"shape": list(value.shape), "dtype": str(value.dtype).removeprefix("torch.")}
        return {"file": name, "sha256": artifacts.sha256(path), "order": list(order_of(value)), **facts}

    def part(self, entry: dict[str, Any]) -> Part:
        """Return the result of a finished block."""
        return codes.read(self.directory / entry["file"])

    def carry(self, store: Store) -> dict[str, Tensor]:
        """Return the activations (N, ...) carried out of the last finished block."""
        return {
            name: store.copy(
                read(self.directory / one["file"], one["shape"], getattr(torch, one["dtype"]), one["order"])
            )
            for name, one in self.carried.items()
        }

    def publish(self, directory: Path, companions: Sequence[str] = (), **facts: Any) -> None:
        """Make the files of this finished state a stored network: one of every block and phase, and ``manifest.json``.

        They are linked, not written again, and what a kill leaves behind can be published again. ``companions`` are
        other files of the directory that belong to the network, ``facts`` go into the manifest.

        Raises:
            InputError: the directory can't be written.
        """
        files = [entry["file"] for entry in self.entries]
        for path in [directory / "manifest.json", *directory.glob(f"*{codes.SUFFIX}")]:
            path.unlink(missing_ok=True)
        for name in files:
            artifacts.link(self.directory / name, directory / name)
        artifacts.write_manifest(directory, [*files, *companions], **facts)


class MemoryState(State):
    """The finished blocks of one reconstruction, lost with the process; no file is written."""

    def __init__(self) -> None:
        super().__init__(Path(), "")
        self._parts: dict[str, Part] = {}

    @contextlib.contextmanager
    def opened(self) -> Iterator["State"]:
        """Do nothing: there is no directory."""
        yield self

    def commit(self, position: str, part: Part, carry: dict[str, Tensor], record: dict[str, Any] | None = None) -> None:
        self.entries.append(_entry(position, record))
        self._parts[position] = part

    def part(self, entry: dict[str, Any]) -> Part:
        return self._parts[entry["position"]]


def _entry(position: str, record: dict[str, Any] | None) -> dict[str, Any]:
    """Return the entry of a finished block."""
    entry = {"position": position, "file": f"{position.replace('/', '-')}{codes.SUFFIX}"}
    return entry if record is None else entry | {"record": record}
