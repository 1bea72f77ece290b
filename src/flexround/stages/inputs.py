"""The directories of results that a stage reads: each says in its manifest whose it is."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from flexround import artifacts
from flexround.errors import InputError


def named(names: Iterable[str]) -> dict[str, str]:
    """Return the facts of the manifest of a task's data, or of a network, given its scale, task and checkpoint."""
    return dict(zip(("scale", "task", "checkpoint"), names, strict=False))


def manifest(directory: Path, verify: bool = True, **facts: Any) -> dict[str, Any]:
    """Read a manifest as ``artifacts.read_manifest`` does, and check that the directory is the one that a job asks for.

    Args:
        directory: of the results.
        verify: hash the files too.
        facts: the identity of what must lie there, as its manifest says it: JSON values.

    Raises:
        InputError: a damaged directory, or the results of another task, network, seed, run or recipe.
    """
    found = artifacts.read_manifest(directory, verify)
    for key, expected in facts.items():
        if found.get(key) != expected:
            raise InputError(
                f"{directory}: its manifest says {key} = {found.get(key)}, this job reads {expected}; "
                f"delete {directory} and run the same command again"
            )
    return found
