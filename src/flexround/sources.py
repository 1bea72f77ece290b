"""Pinned inputs: download, verify, and say what to do when one is missing."""

import http.client
import logging
import urllib.parse
import urllib.request
from pathlib import Path

from flexround.artifacts import atomic_write, sha256, write_text
from flexround.errors import InputError
from flexround.settings.schema import Source

log = logging.getLogger(__name__)
PREFIX = "sha256:"  # a revision that starts with it gives the first digits of the file's sha256
TIMEOUT = 60  # seconds without a byte
PIECE = 1 << 20


def fetch(name: str, source: Source, directory: Path) -> str | None:
    """Download the file of a source unless it is there, verify it, and return its sha256; None for a folder.

    A hash that isn't pinned is recorded in ``FILE.sha256`` the first time and enforced from then on.

    Raises:
        InputError: it can't be downloaded, or it isn't the pinned file.
    """
    path = directory / source.file
    if path.is_dir():
        return None
    if not path.exists():
        atomic_write(path, lambda temporary: _download(name, source, path, temporary))
    return verify(name, source, path)


def verify(name: str, source: Source, path: Path) -> str:
    """Check a source's file, downloaded or put there by hand, and return its sha256; record it if it isn't pinned.

    Raises:
        InputError: missing, or not the pinned file.
    """
    if not path.exists():
        raise InputError(_manual(name, source, path, "it is missing"))
    found = _check(name, source, path, path)
    if source.sha256 is None and not _record(path).exists():
        write_text(_record(path), f"{found}  {path.name}\n")
    return found


def _check(name: str, source: Source, path: Path, content: Path) -> str:
    """Compare ``content``, which is or will become ``path``, with what is known of the source; return its sha256."""
    size = content.stat().st_size
    if source.bytes is not None and size != source.bytes:
        raise InputError(_manual(name, source, path, f"it has {size} bytes instead of {source.bytes}"))
    found = sha256(content)
    for origin, expected in _known_hashes(source, path).items():
        if not found.startswith(expected):
            raise InputError(_manual(name, source, path, f"its sha256 is {found}, but {origin} says {expected}"))
    return found


def _known_hashes(source: Source, path: Path) -> dict[str, str]:
    """Return where a hash, or the beginning of one, is written down -> that hash."""
    known = {"params/sources.yaml": source.sha256 or ""}
    if source.revision.startswith(PREFIX):
        known["its revision"] = source.revision.removeprefix(PREFIX)
    if source.sha256 is None and _record(path).exists():
        known[str(_record(path))] = _record(path).read_text().partition(" ")[0].strip()
    return {origin: value for origin, value in known.items() if value}


def _download(name: str, source: Source, path: Path, temporary: Path) -> None:
    """Download a source to ``temporary`` and check it before it becomes ``path``."""
    if urllib.parse.urlsplit(source.location).scheme not in ("http", "https", "file"):
        raise InputError(_manual(name, source, path, "it is missing and can't be downloaded freely"))
    log.info("downloading %s from %s", name, source.location)
    with open(temporary, "wb") as file:
        try:
            response = urllib.request.urlopen(source.location, timeout=TIMEOUT)
        except (OSError, http.client.HTTPException) as error:
            raise InputError(_manual(name, source, path, f"the download failed ({error})")) from error
        with response:
            expected, received = response.headers.get("Content-Length"), 0
            while piece := _read(name, source, path, response):
                received += file.write(piece)
    if expected is not None and received != int(expected):
        reason = f"the download broke off after {received} of {expected} bytes"
        raise InputError(_manual(name, source, path, reason))
    _check(name, source, path, temporary)


def _read(name: str, source: Source, path: Path, response: http.client.HTTPResponse) -> bytes:
    """Read the next piece; only errors of the network, not those of the disk, become "the download failed"."""
    try:
        return response.read(PIECE)
    except (OSError, http.client.HTTPException) as error:
        raise InputError(_manual(name, source, path, f"the download failed ({error})")) from error


def _record(path: Path) -> Path:
    """Return where the hash of an unpinned file is kept."""
    return path.with_name(f"{path.name}.sha256")


def _manual(name: str, source: Source, path: Path, reason: str) -> str:
    """Say what is wrong with a source and which file to put where."""
    known = next(iter(_known_hashes(source, path).values()), None)
    expected = f"its sha256 must begin with {known}" if known else "no sha256 is pinned, a file's will be recorded"
    return f"source {name}: {path}: {reason}. Get it from: {source.location}, and put it at {path}; {expected}"
