"""Files that are either whole or absent: atomic writes, hashes, manifests.

A rule's output is never its own evidence: each heavy file has a small ``manifest.json`` beside it that holds its
sha256. Manifests hold nothing that changes from run to run (no clock, no seconds), so an unchanged result leaves
everything downstream untouched.
"""

import errno
import hashlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from flexround.errors import InputError

FORMAT = 1  # of manifests and metrics; a reader knows this one alone
UNWRITABLE = {
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG),  # no room
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST),  # no place
}


def atomic_write(path: Path, write: Callable[[Path], object]) -> None:
    """Call ``write(temporary)`` and rename the temporary file to ``path`` once it is on disk.

    Raises:
        InputError: the directory is not writable or the disk is full; ``path`` is then as it was before.
    """
    path = Path(path)
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}{path.suffix}")
        os.close(os.open(temporary, os.O_CREAT | os.O_EXCL, 0o666))  # the umask applies, which mkstemp ignores
        write(temporary)
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except Exception as error:
        number = _error_number(error)
        if number not in UNWRITABLE:
            raise
        raise InputError(
            f"{path}: can't be written ({os.strerror(number)}); free space or choose a writable results directory"
        ) from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def _error_number(error: Exception) -> int:
    """Return the operating system's number of an error, 0 if it has none; safetensors gives it in its text alone."""
    if isinstance(error, OSError):
        return error.errno or 0
    found = re.search(r"\(os error (\d+)\)", str(error))
    return int(found[1]) if found else 0


def write_bytes(path: Path, data: bytes) -> None:
    """Write ``data`` atomically."""
    atomic_write(path, lambda temporary: temporary.write_bytes(data))


def write_text(path: Path, text: str) -> None:
    """Write ``text`` atomically as UTF-8 with LF line ends."""
    write_bytes(path, text.encode())


def write_json(path: Path, value: Any) -> None:
    """Write ``value`` atomically as indented JSON with sorted keys; NaN and Inf are refused."""
    write_text(path, json.dumps(value, indent=1, sort_keys=True, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Raises:
        InputError: the file is missing or not JSON.
    """
    try:
        return json.loads(Path(path).read_text())
    except FileNotFoundError as error:
        raise InputError(f"{path}: missing; run the stage that makes it first") from error
    except ValueError as error:
        raise InputError(f"{path}: not valid JSON ({error}); delete it and run its stage again") from error


def read_formatted(path: Path) -> Any:
    """Read a manifest or an evaluation, JSON that says which ``format`` it has.

    Raises:
        InputError: as ``read_json``, or another format.
    """
    content = read_json(path)
    given = content.get("format", "none") if isinstance(content, dict) else "none"
    if given != FORMAT:
        raise InputError(
            f"{path}: its format is {given}, this version reads {FORMAT}; run the stage that makes it again"
        )
    return content


def sha256(path: Path) -> str:
    """Return the hex sha256 of a file, read in pieces."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def copy_existing(source: Path, target: Path, names: Iterable[str]) -> list[str]:
    """Copy those of ``names`` that exist in one directory to another, atomically; return them."""
    found = [name for name in names if (source / name).exists()]
    for name in found:
        write_bytes(target / name, (source / name).read_bytes())
    return found


def link(source: Path, target: Path) -> None:
    """Give a file a second name, or copy it where the file system has no such thing; its mode stays as it is.

    Raises:
        InputError: the directory of ``target`` is not writable or the disk is full.
    """

    def write(temporary: Path) -> None:
        temporary.unlink()
        try:
            os.link(source, temporary)
        except OSError:
            shutil.copyfile(source, temporary)

    atomic_write(target, write)


def write_manifest(directory: Path, files: list[str], **facts: Any) -> None:
    """Write ``directory/manifest.json``: sha256 and size of ``files`` plus ``facts`` (all reproducible values)."""
    listed = {name: {"sha256": sha256(directory / name), "bytes": (directory / name).stat().st_size} for name in files}
    write_json(directory / "manifest.json", {"format": FORMAT, "files": listed, **facts})


def read_manifest(directory: Path, verify: bool = True) -> dict[str, Any]:
    """Read ``directory/manifest.json`` and check that every file in it has the recorded size and sha256.

    Args:
        directory: holds ``manifest.json`` and the files it lists.
        verify: hash the files too; without it only their sizes are compared.

    Raises:
        InputError: a file is missing, truncated or changed.
    """
    manifest = read_formatted(directory / "manifest.json")
    try:
        files = {name: (facts["bytes"], facts["sha256"]) for name, facts in manifest["files"].items()}
    except (AttributeError, KeyError, TypeError) as error:
        raise InputError(f"{directory / 'manifest.json'}: not a manifest; delete it and run its stage again") from error
    for name, (expected, digest) in files.items():
        path = directory / name
        if not path.exists():
            raise InputError(f"{path}: missing although {directory / 'manifest.json'} lists it; run its stage again")
        size = path.stat().st_size
        if size != expected:
            raise InputError(f"{path}: {size} bytes, its manifest says {expected}; delete it and run again")
        if verify and sha256(path) != digest:
            raise InputError(f"{path}: its sha256 is not the one in its manifest; delete it and run its stage again")
    return manifest
