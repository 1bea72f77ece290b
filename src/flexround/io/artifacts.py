"""Files that are either whole or absent: atomic writes, hashes, manifests.

A rule's output is never its own evidence: each heavy file has a small ``manifest.json`` beside it that holds its
sha256. Manifests hold nothing that changes from run to run (no clock, no seconds), so an unchanged result leaves
everything downstream untouched.
"""

import contextlib
import errno
import fcntl
import glob
import hashlib
import json
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from flexround.errors import InputError

FORMAT = 1  # of manifests and metrics; a reader knows this one alone
SEAL = "content_sha256"  # the key of a document's own hash
OF_DIRECTORY = {"manifest.json", "metrics.json", "record.json"}  # lie beside what they tell of
UNWRITABLE = {
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG),  # no room
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST),  # no place
    *(errno.EBUSY, errno.EXDEV),  # a directory where something is mounted can't be replaced
}


def atomic_write(path: Path, write: Callable[[Path], object]) -> None:
    """Call ``write(temporary)`` and rename the temporary file to ``path`` once it is on disk.

    Raises:
        InputError: the directory is not writable or the disk is full; ``path`` is then as it was before.
    """
    path = Path(path)
    temporary = held = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _forget_killed(path)
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}{path.suffix}")
        held = os.open(temporary, os.O_CREAT | os.O_EXCL, 0o666)  # the umask applies, which mkstemp ignores
        _locked(held)
        write(temporary)
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except Exception as error:
        _refuse_unwritable(path, error)
        raise
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
        if held is not None:
            os.close(held)


@contextlib.contextmanager
def new_directory(directory: Path, replaceable: Callable[[Path], bool] = lambda _: False) -> Iterator[Path]:
    """Yield a new directory beside ``directory``, and give it that name once the block has filled it.

    Args:
        directory: missing, empty, or ``replaceable``; its parents are made.
        replaceable: whether a directory that holds something may be replaced; it is removed at the very end.

    Raises:
        InputError: ``directory`` is a file, holds something else, or can't be written. As after any other error of the
            block, everything is as it was before.
    """
    directory = Path(directory).resolve()
    new, old = (directory.with_name(f".{directory.name}.{secrets.token_hex(8)}") for _ in range(2))
    try:
        if directory.exists() and any(directory.iterdir()) and not replaceable(directory):
            raise InputError(f"{directory}: not empty, and nothing that may be replaced; choose another directory")
        new.mkdir(parents=True)
        yield new
        if directory.exists():
            directory.rename(old)
        new.rename(directory)
    except BaseException as error:
        shutil.rmtree(new, ignore_errors=True)
        if old.exists():
            old.rename(directory)
        _refuse_unwritable(directory, error.__cause__ or error)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _refuse_unwritable(path: Path, error: BaseException) -> None:
    """Raise an InputError about ``path`` for an error of the operating system that the user can mend."""
    number = _error_number(error)
    if number in UNWRITABLE:
        raise InputError(
            f"{path}: can't be written ({os.strerror(number)}); free space or choose a writable results directory"
        ) from error


def _forget_killed(path: Path) -> None:
    """Delete what writers of ``path`` left that were killed: nobody holds its lock any more."""
    for left in path.parent.glob(f".{glob.escape(path.name)}.{'[0-9a-f]' * 16}{glob.escape(path.suffix)}"):
        with contextlib.suppress(OSError):  # gone by now, or no locks on this file system
            held = os.open(left, os.O_RDONLY)
            if _locked(held):
                left.unlink(missing_ok=True)
            os.close(held)


def _locked(file: int) -> bool:
    """Whether an open file could be locked for as long as this process lives and has it open."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _error_number(error: BaseException) -> int:
    """Return the operating system's number of an error, 0 if it has none.

    safetensors gives it in its text alone, NumPy not at all: it says how much of an array was written.
    """
    if isinstance(error, OSError) and error.errno:
        return error.errno
    if re.fullmatch(r"\d+ requested and \d+ written", str(error)):
        return errno.ENOSPC
    found = re.search(r"\(os error (\d+)\)", str(error))
    return int(found[1]) if found else 0


def write_bytes(path: Path, data: bytes) -> None:
    """Write ``data`` atomically."""
    atomic_write(path, lambda temporary: temporary.write_bytes(data))


def write_text(path: Path, text: str) -> None:
    """Write ``text`` atomically as UTF-8 with LF line ends.

    Raises:
        InputError: half a surrogate pair, which JSON can hold and UTF-8 can't.
    """
    try:
        write_bytes(path, text.encode())
    except UnicodeEncodeError as error:
        part = text[max(error.start - 20, 0) : error.end + 20]
        raise InputError(f"{path}: {part!r} is no text in UTF-8; mend the file that it was read from") from error


def write_json(path: Path, value: Any) -> None:
    """Write ``value`` atomically as indented JSON with sorted keys; NaN and Inf are refused."""
    write_text(path, json.dumps(value, indent=1, sort_keys=True, allow_nan=False) + "\n")


def read_text(path: Path) -> str:
    """Read a text file.

    Raises:
        InputError: the file is missing, can't be read or is not UTF-8.
    """
    path = Path(path)
    try:
        if path.is_fifo():  # opening it would wait for a writer
            raise InputError(f"{path}: can't be read (a named pipe, no file)")
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise InputError(f"{path}: missing; {remedy(path)}") from error
    except OSError as error:
        raise InputError(f"{path}: can't be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: byte {error.start} is not UTF-8; {remedy(path)}") from error


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Raises:
        InputError: as ``read_text``, or the text is not JSON.
    """
    try:
        return json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not valid JSON ({error}); {remedy(path)}") from error


def remedy(path: Path) -> str:
    """Return what helps against a damaged file: what is deleted is made again, if it is all that a rule has made."""
    return f"delete {path.parent if path.name in OF_DIRECTORY else path} and run the same command again"


def write_formatted(path: Path, content: dict[str, Any]) -> None:
    """Write a manifest, an evaluation or a state as JSON that says its ``format`` and the hash of its content."""
    content = {"format": FORMAT, **content}
    write_json(path, content | {SEAL: _seal(content)})


def _seal(content: dict[str, Any]) -> str:
    """Return the sha256 of a document as it is read back: with lists, and names as keys."""
    text = json.dumps(json.loads(json.dumps(content)), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def read_formatted(path: Path) -> dict[str, Any]:
    """Read what ``write_formatted`` wrote.

    What older versions wrote has no hash of its content. It is read, too: a damage that takes the hash alone leaves
    the content as it was.

    Raises:
        InputError: as ``read_json``, another format, or a changed content.
    """
    content = read_json(path)
    given = content.get("format", "none") if isinstance(content, dict) else "none"
    if given != FORMAT:
        raise InputError(f"{path}: its format is {given}, this version reads {FORMAT}; {remedy(path)}")
    seal = content.pop(SEAL, None)
    if seal is not None and seal != (found := _seal(content)):
        raise InputError(f"{path}: its content has the sha256 {found}, {SEAL} says {seal}; {remedy(path)}")
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
        InputError: ``source`` can't be read, the directory of ``target`` is not writable or the disk is full.
    """
    if not os.access(source, os.R_OK):
        raise InputError(f"{source}: it is missing or may not be read; chmod u+r, or ask its owner")

    def write(temporary: Path) -> None:
        temporary.unlink(missing_ok=True)
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
    """Read ``directory/manifest.json`` and check that every file in it lies there with the recorded size and sha256.

    Without ``verify`` no file is hashed: only the sizes are compared.

    Raises:
        InputError: a file is missing, truncated or changed, is a link, pipe or directory, or lies elsewhere.
    """
    manifest = read_formatted(directory / "manifest.json")
    for error in damages(directory, manifest, verify):
        raise error
    return manifest


def damages(directory: Path, manifest: dict[str, Any], verify: bool = True) -> Iterator[InputError]:
    """Yield an error for each file that is not as a manifest says, see ``read_manifest``.

    Raises:
        InputError: the manifest lists no files.
    """
    path = directory / "manifest.json"
    again = remedy(path)
    try:
        files = {name: (facts["bytes"], facts["sha256"]) for name, facts in manifest["files"].items()}
    except (AttributeError, KeyError, TypeError) as error:
        raise InputError(f"{path}: not a manifest; {again}") from error
    for name, (expected, digest) in files.items():
        file = directory / name
        if not file.exists():
            yield InputError(f"{file}: missing although {path} lists it; {again}")
        elif Path(name).name != name or not stat.S_ISREG(file.lstat().st_mode):
            yield InputError(f"{file}: no file of its own beside {path}, which lists it; {again}")
        elif (size := file.stat().st_size) != expected:
            yield InputError(f"{file}: {size} bytes, its manifest says {expected}; {again}")
        elif verify and sha256(file) != digest:
            yield InputError(f"{file}: its sha256 is not the one in its manifest; {again}")
