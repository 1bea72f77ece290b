"""A file out of a wheel of the package index, which the command ``pip`` fetches by its hash."""

import os
import shutil
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path

from flexround.errors import InputError
from flexround.io.download import LIMIT

# Neither dependencies nor a build, which would run code; no second copy in a cache.
OPTIONS = ("--no-deps", "--only-binary=:all:", "--require-hashes", "--no-cache-dir", "--no-input")


class PypiError(InputError):
    """Pip is missing or failed, or the wheel has other members."""


def download(requirement: str, sha256: str, directory: Path) -> Path:
    """Fetch a wheel with pip, whose configuration says from which index, and return its path.

    Args:
        requirement: ``NAME==VERSION``.
        sha256: of the wheel, 64 hex digits; pip compares it.
        directory: for the wheel and for pip's own files; must be new.

    Raises:
        PypiError: with pip's reason.
    """
    wheels, temporary = directory / "wheels", directory / "temporary"
    for new in (wheels, temporary):
        new.mkdir(parents=True)
    wanted = temporary / "requirements.txt"
    wanted.write_text(f"{requirement} --hash=sha256:{sha256}\n")
    command = [sys.executable, "-m", "pip", "download", *OPTIONS, "--dest", str(wheels), "--requirement", str(wanted)]
    environment = os.environ | {"TMPDIR": str(temporary)}
    try:
        subprocess.run(
            command, cwd=temporary, env=environment, check=True, capture_output=True, text=True, timeout=LIMIT
        )
    except subprocess.TimeoutExpired as error:
        raise PypiError(f"pip download: it took longer than {LIMIT} s") from error
    except subprocess.CalledProcessError as error:
        raise PypiError(f"pip download: {_reason(error)}") from error
    (wheel,) = wheels.iterdir()
    return wheel


def _reason(error: subprocess.CalledProcessError) -> str:
    """Return the last error that pip tells, with the last broken connection before it, which explains it."""
    lines = [line.strip() for line in error.stderr.splitlines() if line.strip()]
    broken = [line.partition(" after ")[2] for line in lines if "connection broken by" in line][-1:]
    return "; ".join(broken + ([line for line in lines if line.startswith("ERROR:")] or lines or ["it failed"])[-1:])


def take(wheel: Path, member: str, files: Sequence[str], size: int | None, out: Path) -> Path:
    """Copy a member of a wheel to ``out``, or files of a member that is a zip itself into the directory ``out``.

    Names in the archives lead nowhere: only ``out`` and ``out/FILE`` are written, never more than their declared sizes.

    Args:
        wheel: its path.
        member: its full name in the wheel.
        files: full names in the inner zip; none: the member itself is wanted.
        size: what the files have together, in bytes, compared before anything is written; None: not known.
        out: a path that doesn't exist.

    Raises:
        PypiError: there is no such member, it has another size, or it is damaged.
        OSError: of the disk.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            if not files:
                _copy(archive, {member: out}, size)
            else:  # read through its compression, so that no copy of it is written
                with archive.open(member) as content, zipfile.ZipFile(content) as inner:
                    _copy(inner, {file: out / file for file in files}, size)
    except KeyError as error:
        raise PypiError(f"{member}: {error.args[0]}") from error
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:
        raise PypiError(f"{member}: it can't be unpacked ({error})") from error
    return out


def _copy(archive: zipfile.ZipFile, places: dict[str, Path], size: int | None) -> None:
    """Write members of an archive, given name -> path."""
    declared = sum(archive.getinfo(name).file_size for name in places)
    if size is not None and declared != size:
        raise PypiError(f"{', '.join(places)}: {declared} bytes instead of {size}")
    for name, path in places.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        with archive.open(name) as content, open(path, "xb") as file:
            shutil.copyfileobj(content, file, 1 << 20)
