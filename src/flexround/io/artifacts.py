"""Files that are either whole or absent: atomic writes, hashes, manifests.

A rule's output is never its own evidence: a small ``manifest.json`` beside each heavy file holds its sha256. Manifests
contain no values that change from run to run (no clock, no seconds), so an unchanged result leaves everything
downstream untouched.
"""

import contextlib
import hashlib
import json
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from flexround.errors import InputError

FORMAT = 1  # version of the format of manifests and metrics


def atomic_write(path: Path, write: Callable[[Path], object]) -> None:
    """Call ``write(temporary)`` and rename the temporary file to ``path`` once it is on disk.

    After an error in ``write`` the path is unchanged.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}{path.suffix}")
    try:
        write(temporary)
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def new_directory(directory: Path, replaceable: Callable[[Path], bool] = lambda _: False) -> Iterator[Path]:
    """Yield a new directory beside ``directory``, and rename it to ``directory`` once the block has filled it.

    After an error in the block, everything is unchanged.

    Args:
        directory: missing, empty, or ``replaceable``; its parents are created.
        replaceable: whether a directory that isn't empty may be replaced; the old directory is removed last.

    Raises:
        InputError: ``directory`` is neither empty nor replaceable.
    """
    directory = Path(directory).resolve()
    new, old = (directory.with_name(f".{directory.name}.{secrets.token_hex(8)}") for _ in range(2))
    if directory.exists() and any(directory.iterdir()) and not replaceable(directory):
        raise InputError(f"{directory}: not empty, and nothing that may be replaced; choose another directory")
    try:
        new.mkdir(parents=True)
        yield new
        if directory.exists():
            directory.rename(old)
        new.rename(directory)
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        if old.exists():
            old.rename(directory)
        raise
    shutil.rmtree(old, ignore_errors=True)


def write_bytes(path: Path, data: bytes) -> None:
    """Write ``data`` atomically."""
    atomic_write(path, lambda temporary: temporary.write_bytes(data))


def write_text(path: Path, text: str) -> None:
    """Write ``text`` atomically as UTF-8 with LF line ends."""
    write_bytes(path, text.encode())


def write_json(path: Path, value: Any) -> None:
    """Write ``value`` atomically as indented JSON with sorted keys; NaN and Inf are refused."""
    write_text(path, json.dumps(value, indent=1, sort_keys=True, allow_nan=False) + "\n")


def write_formatted(path: Path, content: dict[str, Any]) -> None:
    """Write a manifest, an evaluation or a record as JSON with its ``format``."""
    write_json(path, {"format": FORMAT, **content})


def read_text(path: Path) -> str:
    """Read a text file in UTF-8.

    Raises:
        InputError: the file is missing, can't be read or is not UTF-8.
    """
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: can't be read ({error})") from error


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Raises:
        InputError: as ``read_text``, or the text is not JSON.
    """
    try:
        return json.loads(read_text(path))
    except ValueError as error:
        raise InputError(f"{path}: not valid JSON ({error})") from error


def sha256(path: Path) -> str:
    """Return a file's sha256 in hex, read in chunks."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def copy_existing(source: Path, target: Path, names: Iterable[str]) -> list[str]:
    """Copy the existing files among ``names`` from one directory to another, atomically; return their names."""
    found = [name for name in names if (source / name).exists()]
    for name in found:
        write_bytes(target / name, (source / name).read_bytes())
    return found


def link(source: Path, target: Path) -> None:
    """Create a hard link to a file, or a copy if the file system has no hard links; the mode stays unchanged."""

    def write(temporary: Path) -> None:
        try:
            os.link(source, temporary)
        except OSError:
            shutil.copyfile(source, temporary)

    atomic_write(target, write)


def write_manifest(directory: Path, files: list[str], **facts: Any) -> None:
    """Write ``directory/manifest.json``: sha256 and size of ``files`` plus ``facts`` (all reproducible values)."""
    listed = {name: {"sha256": sha256(directory / name), "bytes": (directory / name).stat().st_size} for name in files}
    write_formatted(directory / "manifest.json", {"files": listed, **facts})


def read_manifest(directory: Path, verify: bool = True) -> dict[str, Any]:
    """Read ``directory/manifest.json`` and compare its files with it.

    Without ``verify`` no file is hashed: only the sizes are compared.

    Raises:
        InputError: a file is missing, truncated or changed, or is no regular file beside the manifest.
    """
    manifest: dict[str, Any] = read_json(directory / "manifest.json")
    for error in damages(directory, manifest, verify):
        raise error
    return manifest


def damages(directory: Path, manifest: dict[str, Any], verify: bool = True) -> Iterator[InputError]:
    """Yield an error for each file that contradicts the manifest, see ``read_manifest``."""
    path = directory / "manifest.json"
    again = f"delete {directory} and run the same command again"
    for name, facts in manifest["files"].items():
        file = directory / name
        if not file.exists():
            yield InputError(f"{file}: missing although {path} lists it; {again}")
        elif Path(name).name != name or not stat.S_ISREG(file.lstat().st_mode):
            yield InputError(f"{file}: no file of its own beside {path}, which lists it; {again}")
        elif (size := file.stat().st_size) != facts["bytes"]:
            yield InputError(f"{file}: {size} bytes, its manifest says {facts['bytes']}; {again}")
        elif verify and sha256(file) != facts["sha256"]:
            yield InputError(f"{file}: its sha256 is not the one in its manifest; {again}")
