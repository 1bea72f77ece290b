"""State on disk, so that a killed job continues at a later block with the same bits.

A state directory belongs to one fingerprint (model, samples, settings, code). ``progress.json`` is renamed into place
last and lists the sha256 of every file it relies on: whatever a kill leaves behind beside it is ignored. A thread
writes while the next block is learned; nobody changes what it was given.
"""

import contextlib
import functools
import logging
import math
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import filelock
import torch
from torch import Tensor

from flexround.errors import InputError
from flexround.io import artifacts
from flexround.reconstruct import codes
from flexround.reconstruct.cache import SUFFIX, Store, file_of, mapped, order_of, write
from flexround.reconstruct.codes import Part

log = logging.getLogger(__name__)
PROGRESS = "progress.json"
PACE = 50e6  # bytes of activations a second that it may write: small ones are written after every block


def cadence(blocks: int, carried: int, budget: float) -> int:
    """Return how many blocks lie between two writes of ``carried`` bytes, so that all take at most ``budget``."""
    return max(1, math.ceil(blocks * carried / max(1.0, budget)))


class State:
    """The finished blocks of one reconstruction and the activations carried to the next.

    Args:
        directory: holds a directory for each fingerprint.
        fingerprint: of all that decides the bits of the result.
        budget: bytes of activations that may be written in all.
        pace: bytes of activations that may be written in a second.

    Attributes:
        room: directory for caches that don't fit in memory; None where no disk may be used.
        entries: one dict per finished block: ``position`` (phase/block), ``file``, ``record`` of a block's work, and
            ``sha256`` once it is written.
        carried: one dict per carried cache on disk: ``file``, its ``sha256``, ``shape``, ``dtype``, and the ``order``
            of its dimensions in memory.
    """

    def __init__(self, directory: Path, fingerprint: str, budget: float = math.inf, pace: float = math.inf) -> None:
        self.directory = directory / fingerprint[:16]
        self.room: Path | None = self.directory
        self.fingerprint = fingerprint
        self.budget, self.pace = budget, pace
        self.entries: list[dict[str, Any]] = []
        self.carried: dict[str, dict[str, Any]] = {}
        self._every, self._since, self._last = 1, 0, time.monotonic()
        self._pending: Future[None] | None = None

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
        with lock, ThreadPoolExecutor(1, "state") as self._writer:
            self._read()
            for path in self._caches(self.directory / facts["file"] for facts in self.carried.values()):
                path.unlink()
            yield self
            self.join()
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

    def spread(self, blocks: int, carried: int) -> None:
        """Keep to the budget: a run has so many blocks, after each of which ``carried`` bytes could be written."""
        self._every = cadence(blocks, carried, self.budget)
        if self._every > 1:
            log.info("activations, %.3g GB, are written after every %d blocks", carried / 1e9, self._every)

    def commit(self, position: str, part: Part, carry: dict[str, Tensor], record: dict[str, Any] | None = None) -> None:
        """Record a finished block: its results and, when it is time, the activations that replace those carried so far.

        Work that is not yet written when a job is killed is done again. Nobody may change ``part`` or ``carry`` later.

        Args:
            position: ``phase/block``, or another word.
            part: the block's result.
            carry: caches (N, ...); what is a file in this directory stays that file. None after the last block of a
                phase.
            record: of the block's work; None for the tensors outside all blocks.

        Raises:
            InputError: no room on the disk, found now or when the block before was written.
        """
        self.join()
        entry = _entry(position, record)
        self.entries.append(entry)
        self._since += 1
        kept = [file_of(value) for value in carry.values()]
        in_files = any(path is not None and path.parent.samefile(self.directory) for path in kept)
        size = sum(value.nbytes for value in carry.values())
        rested = time.monotonic() - self._last >= size / self.pace
        activations, old = None, list[Path]()
        if in_files or not carry or (rested and self._since >= self._every):
            self._since, self._last = 0, time.monotonic()
            activations = dict(carry)
            old = self._caches(kept)  # found now: the next block makes caches of its own while this is written
        self._pending = self._writer.submit(self._write, entry, part, activations, old)

    def join(self) -> None:
        """Wait until everything is on disk; raise the error of writing it, if there was one."""
        if self._pending is not None:
            pending, self._pending = self._pending, None
            pending.result()

    def _caches(self, kept: Iterable[Path | None]) -> list[Path]:
        """Return the caches in the directory but for those that are ``kept``."""
        names = {path.name for path in kept if path is not None}
        return [path for path in self.directory.glob(f"*{SUFFIX}") if path.name not in names]

    def _write(self, entry: dict[str, Any], part: Part, carry: dict[str, Tensor] | None, old: list[Path]) -> None:
        """Write a block's results; with the activations that it carries on, the list of all that is there, too."""
        artifacts.write_bytes(self.directory / entry["file"], codes.encode(part))
        entry["sha256"] = artifacts.sha256(self.directory / entry["file"])
        if carry is None:
            return
        stem = entry["position"].replace("/", "-")
        self.carried = {name: self._keep(f"{stem}.{name}{SUFFIX}", value) for name, value in carry.items()}
        progress = {"fingerprint": self.fingerprint, "entries": self.entries, "carried": self.carried}
        artifacts.write_formatted(self.directory / PROGRESS, progress)
        for path in old:
            path.unlink()

    def _keep(self, name: str, value: Tensor) -> dict[str, Any]:
        """Make sure that a cache is in a file of this directory; return what is needed to read it back."""
        path = file_of(value)
        if path is None or not path.parent.samefile(self.directory):
            path = self.directory / name
            artifacts.atomic_write(path, functools.partial(write, value))
        shape, kind = list(value.shape), str(value.dtype).removeprefix("torch.")
        facts = {"shape": shape, "dtype": kind, "order": list(order_of(value))}
        return {"file": path.name, "sha256": artifacts.sha256(path), **facts}

    def part(self, entry: dict[str, Any]) -> Part:
        """Return the result of a finished block."""
        if "sha256" not in entry:
            self.join()
        return codes.read(self.directory / entry["file"])

    def carry(self, store: Store) -> dict[str, Tensor]:
        """Return the activations (N, ...) carried out of the last finished block."""
        found = {}
        for name, facts in self.carried.items():
            shape, kind = torch.Size(facts["shape"]), getattr(torch, facts["dtype"])
            file = mapped(self.directory / facts["file"], shape, kind, facts["order"])
            found[name] = file if store.directory == self.directory else store.copy(file)
        return found

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
        self.room = None
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
