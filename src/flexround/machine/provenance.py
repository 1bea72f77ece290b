"""Records of a result's origin: commit, packages, device and inputs."""

import contextlib
import datetime
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from flexround.io import artifacts
from flexround.machine import precision
from flexround.settings.layout import ROOT

RECORDED = (  # if installed: the library needs few of these packages
    *("torch", "torchvision", "transformers", "tokenizers", "accelerate"),
    *("peft", "numpy", "safetensors", "scikit-learn", "scipy", "sacrebleu", "lm_eval"),
)


def _versions() -> dict[str, str]:
    """Return the versions of the installed packages among ``RECORDED``."""
    found = {}
    for name in RECORDED:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


INSTALLED = _versions()  # at a job's start: later installations don't change the running job


def processor() -> str:
    """Return the CPU's model name, or its architecture if the system does not report the model."""
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line for line in lines if line.startswith("model name")).partition(": ")[2]
    return platform.machine()


def commit() -> str | None:
    """Return the commit of the project's code, marked dirty after edits; None without git or a repository."""
    if not (ROOT / ".git").exists():  # installed, perhaps within another repository
        return None
    try:
        found, edits = (
            subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout
            for arguments in (["rev-parse", "HEAD"], ["status", "--porcelain", "--untracked-files=no", "src", "params"])
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return found.strip() + (" dirty" if edits else "")


def environment(device: Any) -> dict[str, Any]:
    """Return versions, device and host facts for a result file; for a GPU also its numerical modes."""
    on_gpu = torch.device(device).type == "cuda"
    return {
        "commit": commit(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "processor": processor(),
        "simd": torch.backends.cpu.get_cpu_capability(),
        "python": platform.python_version(),
        "packages": dict(INSTALLED),
        "device": torch.cuda.get_device_name(device) if on_gpu else f"CPU {platform.machine()}",
        "threads": torch.get_num_threads(),
        **({"gpu": precision.facts()} if on_gpu else {}),
    }


def inputs(directory: Path, verify: bool = True) -> dict[str, Any]:
    """Return an output's record of an input: its directory and the hashes of its files.

    Raises:
        InputError: as ``artifacts.read_manifest``, which compares the files with these hashes.
    """
    return {str(directory): artifacts.read_manifest(directory, verify)["files"]}
