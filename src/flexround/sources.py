"""Pinned inputs: download, verify, and say what to do when one is missing."""

import fnmatch
import functools
import hashlib
import http.client
import logging
import shutil
import urllib.parse
import urllib.request
from pathlib import Path

import huggingface_hub

from flexround.artifacts import atomic_write, sha256, write_text
from flexround.errors import InputError
from flexround.settings.schema import Source

log = logging.getLogger(__name__)
PREFIX = "sha256:"  # a revision that starts with it gives the first digits of the file's sha256
HUB = "hub:"  # a location that starts with it is a repository of the Hugging Face hub
TIMEOUT = 60  # seconds without a byte
PIECE = 1 << 20


def fetch(name: str, source: Source, directory: Path) -> str | None:
    """Download a source unless it is there, verify it, and return its sha256 as ``verify`` does.

    Raises:
        InputError: it can't be downloaded, or it isn't the pinned one.
    """
    path = directory / source.file
    if not path.exists():
        if source.location.startswith(HUB):
            _download_snapshot(name, source, path)
        elif source.files and _reachable(source):
            _download_files(name, source, path)
        else:
            atomic_write(path, lambda temporary: _download(name, source, path, temporary))
    return verify(name, source, path)


def verify(name: str, source: Source, path: Path) -> str | None:
    """Check a source, downloaded or put there by hand, and return its sha256, that of a directory as in ``digest``.

    A hash that isn't pinned is recorded in ``FILE.sha256`` the first time and enforced from then on. A directory
    without ``files``, such as ImageNet, is taken as it is: None.

    Raises:
        InputError: missing, or not the pinned one.
    """
    if not path.exists():
        raise InputError(_manual(name, source, path, "it is missing"))
    if path.is_dir() and not source.files:
        return None
    found = _check(name, source, path, path)
    if source.sha256 is None and not _record(path).exists():
        write_text(_record(path), f"{found}  {path.name}\n")
    return found


def digest(directory: Path) -> str:
    """Return the sha256 of the lines ``SHA256  PATH`` of a directory's files in the order of their paths.

    Hidden files, where downloaders keep their notes, don't count.
    """
    lines = (f"{sha256(directory / name)}  {name}\n" for name in _members(directory))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def commit(path: Path) -> str | None:
    """Return the commit of a source downloaded from the hub, None for others."""
    record = _commit_record(path)
    return record.read_text().strip() if record.exists() else None


def _check(name: str, source: Source, path: Path, content: Path) -> str:
    """Compare ``content``, which is or will become ``path``, with what is known of the source; return its sha256."""
    members = _members(content) if source.files else []
    if lacking := [pattern for pattern in source.files if not fnmatch.filter(members, pattern)]:
        raise InputError(_manual(name, source, path, f"it has no {', '.join(lacking)}"))
    size = sum((content / member).stat().st_size for member in members or [""])
    if source.bytes is not None and size != source.bytes:
        raise InputError(_manual(name, source, path, f"it has {size} bytes instead of {source.bytes}"))
    found = digest(content) if source.files else sha256(content)
    for origin, expected in _known_hashes(source, path).items():
        if not found.startswith(expected):
            raise InputError(_manual(name, source, path, f"its sha256 is {found}, but {origin} says {expected}"))
    return found


def _members(directory: Path) -> list[str]:
    """Return the relative paths of the files of a directory, sorted, without what is hidden."""
    names = (path.relative_to(directory) for path in directory.rglob("*") if path.is_file())
    return sorted(name.as_posix() for name in names if not any(part.startswith(".") for part in name.parts))


def _known_hashes(source: Source, path: Path) -> dict[str, str]:
    """Return where a hash, or the beginning of one, is written down -> that hash."""
    known = {"params/sources.yaml": source.sha256 or ""}
    if source.revision.startswith(PREFIX):
        known["its revision"] = source.revision.removeprefix(PREFIX)
    if source.sha256 is None and _record(path).exists():
        known[str(_record(path))] = _record(path).read_text().partition(" ")[0].strip()
    return {origin: value for origin, value in known.items() if value}


def _download_snapshot(name: str, source: Source, path: Path) -> None:
    """Download the files of a repository on the Hugging Face hub; ``path`` appears when they are whole and checked.

    What breaks off is continued by the next call.
    """
    repository, kind = source.location.removeprefix(HUB), "model" if source.kind == "checkpoint" else "dataset"
    log.info("downloading %s from %s", name, source.location)
    try:
        # A branch may move on in the middle of a download, a commit can't.
        resolved = str(huggingface_hub.repo_info(repository, repo_type=kind, revision=source.revision).sha)
        partial = path.with_name(f".{path.name}.{resolved}")
        huggingface_hub.snapshot_download(
            repository, repo_type=kind, revision=resolved, local_dir=partial, allow_patterns=list(source.files)
        )
    except Exception as error:  # those of the hub and of its HTTP client have no base of their own
        message = str(error).partition("\n")[0]
        reason = f"the download failed ({type(error).__name__}: {message})"
        raise InputError(_manual(name, source, path, reason)) from error
    _adopt(name, source, path, partial)
    write_text(_commit_record(path), resolved + "\n")


def _download_files(name: str, source: Source, path: Path) -> None:
    """Download the files of a directory from ``location/FILE``; ``path`` appears when they are whole and checked.

    What breaks off is continued by the next call.
    """
    partial = path.with_name(f".{path.name}.partial")
    for file in source.files:
        url = f"{source.location}/{file}"
        if not (partial / file).exists():
            atomic_write(partial / file, functools.partial(_receive, name, source, path, url))
    _adopt(name, source, path, partial)


def _adopt(name: str, source: Source, path: Path, partial: Path) -> None:
    """Check a downloaded directory and make it ``path``, or delete it."""
    try:
        _check(name, source, path, partial)
    except InputError:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    partial.rename(path)


def _reachable(source: Source) -> bool:
    """Whether a location can be opened as it is."""
    return urllib.parse.urlsplit(source.location).scheme in ("http", "https", "file")


def _download(name: str, source: Source, path: Path, temporary: Path) -> None:
    """Download a source to ``temporary`` and check it before it becomes ``path``."""
    if not _reachable(source):
        raise InputError(_manual(name, source, path, "it is missing and can't be downloaded freely"))
    _receive(name, source, path, source.location, temporary)
    _check(name, source, path, temporary)


def _receive(name: str, source: Source, path: Path, url: str, temporary: Path) -> None:
    """Download ``url`` to ``temporary``, whole."""
    log.info("downloading %s from %s", name, url)
    with open(temporary, "wb") as file:
        try:
            response = urllib.request.urlopen(url, timeout=TIMEOUT)
        except (OSError, http.client.HTTPException) as error:
            raise InputError(_manual(name, source, path, f"the download failed ({error})")) from error
        with response:
            expected, received = response.headers.get("Content-Length"), 0
            while piece := _read(name, source, path, response):
                received += file.write(piece)
    if expected is not None and received != int(expected):
        reason = f"the download broke off after {received} of {expected} bytes"
        raise InputError(_manual(name, source, path, reason))


def _read(name: str, source: Source, path: Path, response: http.client.HTTPResponse) -> bytes:
    """Read the next piece; only errors of the network, not those of the disk, become "the download failed"."""
    try:
        return response.read(PIECE)
    except (OSError, http.client.HTTPException) as error:
        raise InputError(_manual(name, source, path, f"the download failed ({error})")) from error


def _record(path: Path) -> Path:
    """Return where the hash of an unpinned source is kept."""
    return path.with_name(f"{path.name}.sha256")


def _commit_record(path: Path) -> Path:
    """Return where the commit of a download from the hub is kept."""
    return path.with_name(f"{path.name}.commit")


def _manual(name: str, source: Source, path: Path, reason: str) -> str:
    """Say what is wrong with a source and what to put where."""
    known = next(iter(_known_hashes(source, path).values()), None)
    expected = f"its sha256 must begin with {known}" if known else "no sha256 is pinned, the one found will be recorded"
    origin, what, place = source.location, "it", f"it at {path}"
    if source.files:
        what, place = ", ".join(source.files), f"them into {path}/"
    if origin.startswith(HUB):
        kind = "model" if source.kind == "checkpoint" else "data set"
        origin = f"the {kind} {origin.removeprefix(HUB)} of the Hugging Face hub, revision {source.revision}"
    return f"source {name}: {path}: {reason}. Get {what} from: {origin}, and put {place}; {expected}"
