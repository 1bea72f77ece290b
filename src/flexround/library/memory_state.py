"""Finished blocks kept in memory alone, and a state that tells how far it is."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor

from flexround.reconstruct.cache import Store
from flexround.reconstruct.state import State

Listener = Callable[[dict[str, Any]], None]


class MemoryState(State):
    """The finished blocks of one reconstruction, lost with the process; no file is written.

    Args:
        listener: told of each finished block's record.
    """

    def __init__(self, listener: Listener) -> None:
        super().__init__(Path(), "")
        self._listener = listener
        self._tensors: dict[str, dict[str, Tensor]] = {}
        self._last_carry: dict[str, Tensor] = {}

    @property
    def room(self) -> None:
        """No disk is used."""

    def commit(
        self, position: str, tensors: dict[str, Tensor], carry: dict[str, Tensor], facts: dict[str, Any]
    ) -> None:
        """Keep a finished block; arguments as of ``State.commit``."""
        self.entries.append({"position": position, "facts": facts})
        self._tensors[position], self._last_carry = tensors, carry
        if "record" in facts:
            self._listener(facts["record"])

    def tensors(self, entry: dict[str, Any]) -> dict[str, Tensor]:
        """Return the results of a finished block."""
        return self._tensors[entry["position"]]

    def carry(self, store: Store) -> dict[str, Tensor]:
        """Return the activations carried out of the last finished block."""
        return self._last_carry


class HeardState(State):
    """A state on disk that also tells of each finished block.

    Args:
        directory, fingerprint: as of ``State``.
        listener: told of each finished block's record.
    """

    def __init__(self, directory: Path, fingerprint: str, listener: Listener) -> None:
        super().__init__(directory, fingerprint)
        self._listener = listener

    def commit(
        self, position: str, tensors: dict[str, Tensor], carry: dict[str, Tensor], facts: dict[str, Any]
    ) -> None:
        """Record a finished block; arguments as of ``State.commit``."""
        super().commit(position, tensors, carry, facts)
        if "record" in facts:
            self._listener(facts["record"])
