"""The directories of results that a stage reads: the manifest of each says where it belongs."""

from pathlib import Path
from typing import Any

from flexround import artifacts
from flexround.errors import InputError


def manifest(directory: Path, verify: bool = True, **facts: Any) -> dict[str, Any]:
    """Read a manifest as ``artifacts.read_manifest`` does, and check that it belongs where it lies.

    Args:
        directory: of the results; its path names scale, task, network, recipe and seed.
        verify: hash the files too.
        facts: what else the manifest must say, in JSON values.

    Raises:
        InputError: a damaged directory, or one of another place, such as the network of another run.
    """
    found = artifacts.read_manifest(directory, verify)
    for key, expected in {"place": str(directory), **facts}.items():
        if found.get(key) != expected:
            raise InputError(
                f"{directory}: its manifest says {key} = {found.get(key)}, this job reads {expected}; "
                f"delete {directory} and run the same command again"
            )
    return found


def files(directory: Path, verify: bool = True, **facts: Any) -> dict[str, Any]:
    """Return what an output records of an input: its place and the hashes of its files; see :func:`manifest`."""
    return {str(directory): manifest(directory, verify, **facts)["files"]}
