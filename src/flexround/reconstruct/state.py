"""The finished blocks of a reconstruction, from which a killed job resumes with the same bits.

Each block's codes are a file in the directory of unfinished work (``io.resume``). The part ``PROGRESS`` lists these
files and has the next block's input activations; it is renamed into place last.
"""

import contextlib
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from flexround.io import artifacts, resume
from flexround.reconstruct import codes
from flexround.reconstruct.cache import Store, from_memory, order_of
from flexround.reconstruct.codes import Part

log = logging.getLogger(__name__)
PROGRESS = "progress"


class State:
    """The finished blocks of one reconstruction and the activations carried to the next.

    Args:
        directory: contains one directory per fingerprint.
        fingerprint: hash of everything that decides the result's bits.

    Attributes:
        entries: one dict per finished block: ``position`` (phase/block), ``file``, and the block's ``record``.
    """

    def __init__(self, directory: Path, fingerprint: str) -> None:
        self.directory = directory / fingerprint[:16]
        self.entries: list[dict[str, Any]] = []
        self._carried: dict[str, Tensor] = {}

    @contextlib.contextmanager
    def opened(self) -> Iterator["State"]:
        """Read the directory, keep finished blocks in it, and remove it after success."""
        with resume.kept(self.directory):
            if found := resume.load(PROGRESS):
                tensors, facts = found
                self.entries = facts["entries"]
                self._carried = {name: from_memory(value, facts["orders"][name]) for name, value in tensors.items()}
                log.info("resuming after block %s", self.entries[-1]["position"])
            yield self
        with contextlib.suppress(OSError):  # it still has unfinished work of other settings or code
            self.directory.parent.rmdir()

    def commit(self, position: str, part: Part, carry: dict[str, Tensor], record: dict[str, Any] | None = None) -> None:
        """Write a finished block: its results, and the activations that replace those carried so far.

        Args:
            position: ``phase/block``, or another word.
            part: the block's result.
            carry: caches (N, ...); empty after the last block of a phase.
            record: record of the block's work; None for the tensors outside all blocks.
        """
        entry = _entry(position, record)
        artifacts.write_bytes(self.directory / entry["file"], codes.encode(part))
        self.entries.append(entry)
        orders = {name: order_of(value) for name, value in carry.items()}
        laid_out = {name: value.permute(orders[name]) for name, value in carry.items()}
        resume.save(PROGRESS, laid_out, entries=self.entries, orders=orders)

    def part(self, entry: dict[str, Any]) -> Part:
        """Return the result of a finished block."""
        return codes.read(self.directory / entry["file"])

    def carry(self, store: Store) -> dict[str, Tensor]:
        """Return the activations (N, ...) that the last finished block carried when the state was opened."""
        return {name: store.copy(self._carried.pop(name)) for name in list(self._carried)}

    def publish(self, directory: Path, companions: Sequence[str] = (), **facts: Any) -> None:
        """Publish a stored network: one file per block and phase, and ``manifest.json``.

        The files are linked, not rewritten. ``companions`` are the network's other files in the directory; ``facts``
        go into the manifest.
        """
        files = [entry["file"] for entry in self.entries]
        for path in [directory / "manifest.json", *directory.glob(f"*{codes.SUFFIX}")]:
            path.unlink(missing_ok=True)
        for name in files:
            artifacts.link(self.directory / name, directory / name)
        artifacts.write_manifest(directory, [*files, *companions], **facts)


class MemoryState(State):
    """The finished blocks of one reconstruction in memory, without files."""

    def __init__(self) -> None:
        super().__init__(Path(), "")
        self._parts: dict[str, Part] = {}

    @contextlib.contextmanager
    def opened(self) -> Iterator["State"]:
        """Do nothing: this state has no directory."""
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
