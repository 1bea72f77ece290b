"""Files of a repository on the Hugging Face hub, at one commit, fetched with the hub's command ``hf``."""

import os
import sys
from pathlib import Path

from flexround.io.download import run
from flexround.settings.sources import Source

# Nothing else than the files is asked for.
SETTINGS = {"HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_UPDATE_CHECK": "1", "NO_COLOR": "1"}
NOTES = ".cache/huggingface/download"  # what the hub's client writes about the files of a directory


def fetch(source: Source, partial: Path) -> Path:
    """Download the wanted files to ``partial`` and return it; files that are there already are not fetched again.

    Raises:
        DownloadError: the hub can't be reached, or lacks the revision.
    """
    kind = "model" if source.kind == "checkpoint" else "dataset"
    wanted = [f"--include={pattern}" for pattern in source.files]
    command = [sys.executable, "-m", "huggingface_hub.cli.hf", "download", source.location.partition(":")[2]]
    command += [f"--repo-type={kind}", f"--revision={source.revision}", f"--local-dir={partial.name}", *wanted]
    partial.mkdir(parents=True, exist_ok=True)
    run("hf download", command, partial.parent, os.environ | SETTINGS)
    return partial


def commit(directory: Path) -> str | None:
    """Return the commit that a directory was downloaded at; None if it doesn't come from the hub."""
    notes = sorted((directory / NOTES).rglob("*.metadata"))
    return notes[0].read_text().partition("\n")[0] if notes else None
