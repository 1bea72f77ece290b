"""Which source files a stage depends on, and what is recorded about where a number came from."""

import ast
import functools
import hashlib
import importlib.util
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).resolve().parent
RECORDED = ("torch", "torchvision", "numpy", "safetensors", "scikit-learn")


def source_files(*modules: str) -> list[Path]:
    """Return the files of ``modules`` and of all ``flexround`` modules that they import, directly or not.

    Found by reading the import statements, also those inside functions, so that a rule's inputs are exactly the
    sources its stage can run. A module outside the package counts as one file.

    Args:
        modules: dotted names, e.g. ``flexround.stages.evaluate``.
    """
    found: dict[str, Path] = {}
    waiting = list(modules)
    while waiting:
        name = waiting.pop()
        path = _module_file(name)
        if name in found or path is None:
            continue
        found[name] = path
        if path.is_relative_to(PACKAGE):
            waiting += _imports(path)
    return sorted(set(found.values()))


@functools.cache
def _module_file(name: str) -> Path | None:
    """Return the file of a module, without importing it when it belongs to this package."""
    if name.split(".")[0] != PACKAGE.name:
        spec = importlib.util.find_spec(name)
        return Path(spec.origin) if spec and spec.origin else None
    base = PACKAGE.joinpath(*name.split(".")[1:])
    for path in (base.with_suffix(".py"), base / "__init__.py"):
        if path.exists():
            return path
    return None


@functools.cache
def _imports(path: Path) -> tuple[str, ...]:
    """Return the names of ``flexround`` modules in the import statements of a file."""
    names: list[str] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return tuple(name for name in names if name.split(".")[0] == PACKAGE.name)


def code_hash(*modules: str) -> str:
    """Return a sha256 over the contents of ``source_files(*modules)``."""
    digest = hashlib.sha256()
    for path in source_files(*modules):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def environment(device: Any) -> dict[str, Any]:
    """Return versions, device and host facts for a result file."""
    import torch

    on_gpu = torch.device(device).type == "cuda"
    return {
        "python": platform.python_version(),
        "packages": {name: metadata.version(name) for name in RECORDED},
        "device": torch.cuda.get_device_name(device) if on_gpu else f"CPU {platform.machine()}",
        "threads": torch.get_num_threads(),
    }
