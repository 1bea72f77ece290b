"""One file over HTTP or from this machine: whole, within a time limit, and nothing that can't be what was asked for."""

import contextlib
import functools
import gzip
import http.client
import json
import logging
import signal
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from safetensors import SafetensorError, safe_open

from flexround.io.artifacts import atomic_write
from flexround.settings.layout import PARAMS
from flexround.settings.sources import Source

QUIET = 60  # seconds without a byte
LIMIT = 6 * 3600  # seconds in all
PAUSES = (5.0, 30.0)  # seconds before another try after an error of the network
PIECE = 1 << 20
PAGES = (b"<!doctype html", b"<html")  # what a server says instead of a file, often with the status "OK"


log = logging.getLogger(__name__)


class DownloadError(Exception):
    """What is wrong with a download, in words that go on after its address."""


class NetworkError(DownloadError):
    """An error that another try may not meet."""


def run(name: str, command: Sequence[str], directory: Path, environment: Mapping[str, str]) -> None:
    """Run a command that downloads, within LIMIT; a DownloadError begins with ``name`` and has the command's reason."""
    try:
        subprocess.run(
            command, cwd=directory, env=environment, check=True, capture_output=True, text=True, timeout=LIMIT
        )
    except FileNotFoundError as error:
        raise DownloadError(f"the command {command[0]} is missing; install it") from error
    except subprocess.TimeoutExpired as error:
        raise DownloadError(f"{name}: it took longer than {LIMIT} s") from error
    except subprocess.CalledProcessError as error:
        lines = error.stderr.strip().splitlines() or [f"exit status {error.returncode}"]
        told = [line for line in lines if line.lower().startswith(("fatal:", "error:"))][:1] or lines[-1:]
        broken = [line for line in lines if "connection broken by" in line][:1]  # pip's error does not say it
        raise DownloadError(f"{name}: {'; '.join(told + broken)}") from error


def fetch(source: Source, partial: Path) -> Path:
    """Download a file, or the files of a directory from ``location/FILE``; what came whole is not asked for again.

    Returns:
        The file or the directory, below ``partial``.

    Raises:
        DownloadError: an address can't be reached, takes too long, or has no whole file.
        InputError: ``partial`` can't be written.
    """
    location = (PARAMS.parent / source.inside).as_uri() if source.inside else source.location
    wanted = {f"{location}/{file}": partial / file for file in source.files} or {location: partial / "it"}
    for url, path in wanted.items():
        if not path.exists():
            atomic_write(path, functools.partial(_receive, url))
    return partial if source.files else path


def _receive(url: str, path: Path) -> None:
    """Download ``url`` to ``path``; in the main thread, which alone can be interrupted.

    Only errors of the network are tried again: what came whole and is not what was asked for stays so.
    """
    with _limited():
        for pause in (*PAUSES, None):
            try:
                with open(path, "wb") as file:
                    file.writelines(_pieces(url))
                break
            except NetworkError as error:
                if pause is None:
                    raise
                log.info("%s; another try in %g s", error, pause)
                time.sleep(pause)
    with open(path, "rb") as received:
        _check(received, urllib.parse.urlsplit(url).path)


@contextlib.contextmanager
def _limited() -> Iterator[None]:
    """End what runs within with a DownloadError after LIMIT: connecting, a header, a redirection or the content."""

    def end(*_: object) -> None:
        raise DownloadError(f"it took longer than {LIMIT} s")

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, LIMIT)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _pieces(url: str) -> Iterator[bytes]:
    """Yield what is at ``url``; only errors of the network, not those of the disk, become a DownloadError."""
    received = 0
    try:
        with urllib.request.urlopen(url, timeout=QUIET) as response:
            length = response.headers.get("Content-Length")
            if length is not None and not length.isdecimal():
                raise DownloadError(f"its server says Content-Length: {length!r}")
            while piece := response.read1(PIECE):
                received += len(piece)
                yield piece
    except (OSError, http.client.HTTPException, ValueError) as error:
        refused = isinstance(error, ValueError) or url.startswith("file:")
        refused |= isinstance(error, urllib.error.HTTPError) and error.code < 500
        raise (DownloadError if refused else NetworkError)(f"the download failed ({error})") from error
    if length is not None and received != int(length):
        raise NetworkError(f"the download broke off after {received} of {length} bytes")


def _check(file: BinaryIO, name: str) -> None:
    """Refuse what is empty, a page of HTML, or cut off, as far as its format tells."""
    start = file.read(len(PAGES[0]) + 256).lstrip().lower()
    if not start:
        raise DownloadError("it is empty")
    if start.startswith(PAGES) and not name.endswith((".html", ".htm")):
        raise DownloadError("it is a page of HTML, perhaps the server's words about an error")
    file.seek(0)
    if not _whole(file, name):
        raise DownloadError(f"it is not a whole {Path(name).suffix.removeprefix('.')} file: cut off or something else")


def _whole(file: BinaryIO, name: str) -> bool:
    """Whether a file ends where its format says; True of formats that don't say it."""
    magic = file.read(4)
    file.seek(0)
    try:
        if magic == b"PK\x03\x04":
            return zipfile.is_zipfile(file)
        if magic[:2] == b"\x1f\x8b":
            with gzip.open(file) as content:
                while content.read(PIECE):
                    pass
        elif magic == b"PAR1" or name.endswith(".parquet"):
            file.seek(max(0, file.seek(0, 2) - 4))
            return magic == file.read() == b"PAR1"
        elif name.endswith(".safetensors"):
            safe_open(file.name, "np")  # it compares the header with the size of the file
        elif name.endswith(".json"):
            json.load(file)
    except (EOFError, OSError, zlib.error, SafetensorError, ValueError, RecursionError):
        return False
    return True
