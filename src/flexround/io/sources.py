"""Pinned inputs: download and verify them, and tell the user how to supply a missing input."""

import dataclasses
import fnmatch
import hashlib
import logging
import os
import shutil
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path

from flexround.errors import InputError
from flexround.io import fetchers
from flexround.io.artifacts import sha256, write_text
from flexround.settings.sources import Source

log = logging.getLogger(__name__)
PREFIX = "sha256:"  # a revision that starts with it gives the first digits of the file's sha256
FETCHERS: dict[str, Callable[[Source, Path], Path]] = {  # by the scheme of the location
    **dict.fromkeys(("http", "https", "file"), fetchers.over_http),
    **{"hub": fetchers.from_hub, "git": fetchers.from_git, "pypi": fetchers.from_pypi},
}
ANEW = ("git", "pypi")  # their broken downloads restart from the beginning; the others resume in the next call


def fetch(name: str, source: Source, directory: Path) -> str | None:
    """Download a source unless it exists, verify it, and return its sha256 as ``verify`` does.

    A source inside the project is copied each time, because a new version of the project may have changed it.

    Raises:
        InputError: the source can't be downloaded, or it isn't the pinned source.
    """
    wanted = _Wanted(name, source, directory / source.file)
    if source.inside:
        wanted.discard()
    if source.placed:
        wanted.link(source.placed)
    if not wanted.path.exists():
        wanted.download()
    return wanted.verify()


def verify(name: str, source: Source, path: Path) -> str | None:
    """Check a source, downloaded or supplied by hand, and return its sha256, for a directory as in ``digest``.

    An unpinned hash is recorded in ``FILE.sha256`` the first time and enforced from then on. A directory without
    ``files``, such as ImageNet, must only exist: None. A source that a scale's own file names has its present hash.

    Raises:
        InputError: the source is missing, or it isn't the pinned source.
    """
    return _Wanted(name, source, path).verify()


def digest(path: Path) -> str:
    """Return a file's sha256, or for a directory the sha256 of the lines ``SHA256  PATH`` in the order of the paths.

    Hidden files, which hold downloaders' metadata, don't count. docs/run-at-scale.md has the shell command for it.
    """
    return _digest({name: sha256(path / name) for name in _members(path)}) if path.is_dir() else sha256(path)


def size(path: Path) -> int:
    """Return the size in bytes of a file, or of a directory's files without hidden files."""
    return sum((path / name).stat().st_size for name in (_members(path) if path.is_dir() else [""]))


def _digest(hashes: Mapping[str, str]) -> str:
    """Return the sha256 of the lines ``SHA256  PATH`` in the order of the paths, given path -> sha256."""
    lines = (f"{hashes[name]}  {name}\n" for name in sorted(hashes))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def stamp(place: Path) -> str:
    """Return a hash that changes when a file of ``place`` is edited, added or removed; no file is read."""
    found = [place] if place.is_file() else _files(place)
    facts = ((path.relative_to(place).as_posix(), path.stat()) for path in found)
    text = "".join(f"{name} {found.st_size} {found.st_mtime_ns}\n" for name, found in facts)
    return hashlib.sha256(text.encode()).hexdigest()


def _files(directory: Path) -> list[Path]:
    """Return all files of a directory, sorted; links to other directories are followed, as by readers of data."""
    found = []
    for place, inner, names in os.walk(directory, followlinks=True):
        here = Path(place)
        inner[:] = [name for name in inner if not here.resolve().is_relative_to((here / name).resolve())]  # no circles
        found += [here / name for name in names if (here / name).is_file()]
    return sorted(found)


def _members(directory: Path) -> list[str]:
    """Return the relative paths of a directory's files, sorted, without hidden files."""
    names = (path.relative_to(directory) for path in _files(directory))
    return sorted(name.as_posix() for name in names if not any(part.startswith(".") for part in name.parts))


def _record(path: Path) -> Path:
    """Return the file that records an unpinned source's sha256."""
    return path.with_name(f"{path.name}.sha256")


@dataclasses.dataclass(frozen=True)
class _Wanted:
    """A source and its present or future path."""

    name: str
    source: Source
    path: Path

    def verify(self) -> str | None:
        if not self.path.exists():
            raise self.error("it is missing")
        if self.source.placed:
            return digest(self.path)
        if self.path.is_dir() and not self.source.files:
            return None
        found, record = self.check(self.path), _record(self.path)
        if self.source.sha256 is None and not record.exists():
            write_text(record, f"{found}  {self.path.name}\n")
        return found

    def check(self, content: Path) -> str:
        """Compare ``content``, which is or will become ``path``, with the known size and hashes; return its sha256."""
        given, found = self._packed(content) if self.source.packed else self._plain(content)
        if (size := self.source.bytes) is not None and given != size:
            raise self.error(f"it has {given} bytes instead of {size}")
        for origin, expected in self.known_hashes().items():
            if not found.startswith(expected):
                mend = " (recorded, not pinned: delete it if it is wrong)" if origin.endswith(".sha256") else ""
                raise self.error(f"its sha256 is {found}, but {origin} says {expected}{mend}")
        return found

    def _plain(self, content: Path) -> tuple[int, str]:
        members = _members(content)
        if lacking := [pattern for pattern in self.source.files if not fnmatch.filter(members, pattern)]:
            raise self.error(f"it has no {', '.join(lacking)}")
        return size(content), digest(content)

    def _packed(self, content: Path) -> tuple[int, str]:
        """Return the total bytes of a tar's files, and the sha256 that their directory would have."""
        given, hashes = 0, {}
        with tarfile.open(content, "r:") as tar:
            for member in tar:
                if (file := tar.extractfile(member)) is not None:
                    given += member.size
                    hashes[member.name] = hashlib.sha256(file.read()).hexdigest()
        return given, _digest(hashes)

    def known_hashes(self) -> dict[str, str]:
        """Return the known hashes, or their first digits, by the place that records them."""
        known, record = {"params/sources.yaml": self.source.sha256 or ""}, _record(self.path)
        if self.source.revision.startswith(PREFIX):
            known["its revision"] = self.source.revision.removeprefix(PREFIX)
        if self.source.sha256 is None and record.exists():
            known[str(record)] = record.read_text().partition(" ")[0].strip()
        return {origin: value for origin, value in known.items() if value}

    def link(self, place: Path) -> None:
        """Link to the user's file or folder at its present place."""
        if not place.exists():
            raise InputError(f"source {self.name}: {place} is missing; correct `sources` in the scale's file")
        if self.path.is_symlink():
            self.path.unlink()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.symlink_to(place)

    @property
    def scheme(self) -> str:
        """The scheme of the source's location; ``""`` if the location only describes how to obtain the source."""
        scheme = self.source.location.partition(":")[0]
        return scheme if scheme in FETCHERS else ""

    @property
    def partial(self) -> Path:
        """The source's path until it is complete."""
        return self.path.with_name(f".{self.path.name}.partial")

    def discard(self) -> None:
        """Delete the source, and the partial download of an earlier call."""
        for path in (self.path, self.partial):
            if path.is_dir():
                shutil.rmtree(path)
            path.unlink(missing_ok=True)

    def download(self) -> None:
        """Download the source; ``path`` appears once the content is complete and checked."""
        if not self.scheme:
            raise self.error("it is missing and can't be downloaded freely")
        log.info("downloading %s from %s", self.name, self.source.location)
        try:
            content = FETCHERS[self.scheme](self.source, self.partial)
            self.check(content)
        except fetchers.DownloadError as error:
            if self.scheme in ANEW:
                shutil.rmtree(self.partial, ignore_errors=True)
            raise self.error(str(error)) from error
        except InputError:
            shutil.rmtree(self.partial, ignore_errors=True)
            raise
        content.rename(self.path)
        shutil.rmtree(self.partial, ignore_errors=True)

    def error(self, reason: str) -> InputError:
        """Return an error that gives the reason and tells the user which file to put where."""
        source, path = self.source, self.path
        if place := source.inside:
            return InputError(
                f"source {self.name}: {place}: {reason}. It is a file of this project: restore it (git checkout "
                f"{place}), or make it and its sha256 again (worlds/README.md)"
            )
        known = next(iter(self.known_hashes().values()), "recorded when it is first read")
        what, place = (", ".join(source.files), f"them into {path}/") if source.files else ("it", f"it at {path}")
        record = path.parents[len(Path(source.file).parts) - 1] / f"{self.name}.json"
        again = f"; or delete it and {record}, and run the same command again" if path.exists() and self.scheme else ""
        return InputError(
            f"source {self.name}: {path}: {reason}. Get {what} from: {self.origin}, and put {place} "
            f"(sha256 {known}; docs/run-at-scale.md has the command for a folder){again}"
        )

    @property
    def origin(self) -> str:
        """The place where a reader can get the source."""
        source, address = self.source, self.source.location.partition(":")[2]
        if self.scheme == "hub":
            kind = "model" if source.kind == "checkpoint" else "data set"
            return f"the {kind} {address} of the Hugging Face hub, revision {source.revision}"
        if self.scheme == "git":
            form = f", packed as a tar of names such as {source.path}/..." if source.packed else ""
            return f"{source.path} of the git repository {address}, commit {source.revision}{form}"
        if self.scheme == "pypi":
            return f"{source.path} of the wheel {address} of the package index, sha256 {source.revision}"
        return source.location
