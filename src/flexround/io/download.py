"""Files over HTTP or from this machine, and how the commands run that download from elsewhere."""

import functools
import http.client
import logging
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path

from flexround.io.artifacts import atomic_write
from flexround.settings.layout import PARAMS
from flexround.settings.sources import Source

QUIET = 60  # seconds without a byte
PAUSES = (5.0, 30.0)  # seconds before another try after an error of the network


log = logging.getLogger(__name__)


class DownloadError(Exception):
    """What is wrong with a download, in words that follow its address."""


def run(name: str, command: Sequence[str], directory: Path, environment: Mapping[str, str]) -> None:
    """Run a command that downloads; a DownloadError begins with ``name`` and has the command's reason."""
    try:
        subprocess.run(command, cwd=directory, env=environment, check=True, capture_output=True, text=True)
    except FileNotFoundError as error:
        raise DownloadError(f"the command {command[0]} is missing; install it") from error
    except subprocess.CalledProcessError as error:
        lines = error.stderr.strip().splitlines() or [f"exit status {error.returncode}"]
        told = [line for line in lines if line.lower().startswith(("fatal:", "error:"))][:1] or lines[-1:]
        broken = [line for line in lines if "connection broken by" in line][:1]  # pip's error does not say it
        raise DownloadError(f"{name}: {'; '.join(told + broken)}") from error


def fetch(source: Source, partial: Path) -> Path:
    """Download a file, or the files of a directory from ``location/FILE``; whole files are not downloaded again.

    Returns:
        The file or the directory, below ``partial``.

    Raises:
        DownloadError: an address can't be reached, or its server breaks off.
    """
    location = (PARAMS.parent / source.inside).as_uri() if source.inside else source.location
    wanted = {f"{location}/{file}": partial / file for file in source.files} or {location: partial / "it"}
    for url, path in wanted.items():
        if not path.exists():
            atomic_write(path, functools.partial(_receive, url))
    return partial if source.files else path


def _receive(url: str, path: Path) -> None:
    """Download ``url`` to ``path``; after an error of the network, but not after a refusal, twice again."""
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
