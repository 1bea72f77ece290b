"""Which source files a stage depends on, and what is recorded about where a number came from."""

import ast
import functools
import hashlib
import importlib.util
import platform
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).resolve().parent
RECORDED = (
    *("torch", "torchvision", "transformers", "tokenizers", "accelerate"),
    *("peft", "numpy", "safetensors", "scikit-learn", "scipy", "sacrebleu", "lm_eval"),
)


def source_files(*modules: str) -> list[Path]:
    """Return the files of ``modules`` and of all modules that they import, directly or not.

    Found by reading the import statements, also those inside functions, so that a rule's inputs are exactly the
    sources its stage can run. Installed packages, which the lock file pins, and the standard library are left out.

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
        waiting += [*_imports(name, path), name.rpartition(".")[0]]
    return sorted(set(found.values()))


@functools.cache
def _module_file(name: str) -> Path | None:
    """Return the file of a module of this package or of the user's, without importing it; None for any other."""
    for root in _roots(name.partition(".")[0]):
        base = root.joinpath(*name.split("."))
        for path in (base.with_suffix(".py"), base / "__init__.py"):
            if path.exists():
                return path
    return None


def _roots(top: str) -> list[Path]:
    """Return the directories that hold a top-level module; none if it is installed, standard or unknown."""
    if top == PACKAGE.name:
        return [PACKAGE.parent]
    spec = None if not top or top in sys.stdlib_module_names else importlib.util.find_spec(top)
    if spec is None:
        return []
    places = [*(spec.submodule_search_locations or [spec.origin or ""])]  # a package's directories, a module's file
    return [Path(place).parent for place in places if place and "site-packages" not in Path(place).parts]


@functools.cache
def _imports(name: str, path: Path) -> tuple[str, ...]:
    """Return what may be names of modules in the import statements of a module."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    names: list[str] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            origin = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
            names += [origin, *(f"{origin}.{alias.name}" for alias in node.names)]
    return tuple(names)


def code_hash(*modules: str) -> str:
    """Return a sha256 over the names and contents of ``source_files(*modules)``."""
    digest = hashlib.sha256()
    for path in source_files(*modules):
        content = path.read_bytes()
        digest.update(f"{path.name} {len(content)}\n".encode() + content)
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
