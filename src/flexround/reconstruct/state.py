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
from torch import Tensor

from flexround import artifacts
from flexround.errors import InputError

log = logging.getLogger(__name__)
PROGRESS = "progress.json"


class State:
    """The finished blocks of one reconstruction and the activations carried to the next.

    Attributes:
        entries: one dict per finished block: ``position`` (phase/block), ``files`` (sha256 by name), ``facts``.
    """

    def __init__(self, directory: Path, fingerprint: str) -> None:
        self.directory = directory / fingerprint[:16]
        self.fingerprint = fingerprint
        self.entries: list[dict[str, Any]] = []

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
            damaged = None if foreign else self._first_damage(progress["entries"])
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
        self.entries = progress["entries"]
        log.info("resuming after block %s", self.entries[-1]["position"])

    def _first_damage(self, entries: list[dict[str, Any]]) -> str | None:
        """Return what is wrong with the files of the entries, or None."""
        for entry in entries:
            for name, digest in entry["files"].items():
                path = self.directory / name
                if not path.exists():
                    return f"{name} is missing"
                if artifacts.sha256(path) != digest:
                    return f"{name} has changed"
        return None

    def commit(
        self, position: str, tensors: dict[str, Tensor], carry: dict[str, Tensor], facts: dict[str, Any]
    ) -> None:
        """Record a finished block: its results, and the activations that replace those carried so far."""
        from safetensors.torch import save_file

        stem = position.replace("/", "-")
        files = {}
        for name, content in ((f"{stem}.safetensors", tensors), (f"{stem}.carry.safetensors", carry)):
            cpu = {key: value.detach().cpu().contiguous() for key, value in content.items()}
            artifacts.atomic_write(self.directory / name, functools.partial(save_file, cpu))
            files[name] = artifacts.sha256(self.directory / name)
        for entry in self.entries:  # only the newest carry is needed
            entry["files"] = {name: digest for name, digest in entry["files"].items() if ".carry." not in name}
        self.entries.append({"position": position, "files": files, "facts": facts})
        artifacts.write_json(self.directory / PROGRESS, {"fingerprint": self.fingerprint, "entries": self.entries})
        for path in self.directory.glob("*.carry.safetensors"):
            if path.name not in files:
                path.unlink()

    def tensors(self, position: str) -> dict[str, Tensor]:
        """Return the results of a finished block."""
        from safetensors.torch import load_file

        return load_file(self.directory / f"{position.replace('/', '-')}.safetensors")

    def carry(self) -> dict[str, Tensor]:
        """Return the activations carried out of the last finished block."""
        from safetensors.torch import load_file

        return load_file(self.directory / f"{self.entries[-1]['position'].replace('/', '-')}.carry.safetensors")
