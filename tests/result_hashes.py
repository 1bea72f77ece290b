"""Hashes of all results of a run, file by file."""

import hashlib
import json
from pathlib import Path
from typing import Any

MEASURED = ("seconds", "peak_mb")  # in metrics.json and record.json


def hashes(project: Path) -> dict[str, str]:
    """Return file -> sha256 for all results of a project except sources; JSON is hashed without measured values."""
    results = project / "results"
    files = {str(path.relative_to(results)): path for path in sorted(results.rglob("*")) if path.is_file()}
    return {name: _hash(path) for name, path in files.items() if not name.startswith("sources/")}


def _hash(path: Path) -> str:
    content = path.read_bytes()
    if path.suffix == ".json":
        content = json.dumps(_unmeasured(json.loads(content))).encode()
    return hashlib.sha256(content).hexdigest()


def _unmeasured(value: Any) -> Any:
    """Return a JSON value without seconds and memory."""
    if isinstance(value, dict):
        return {key: _unmeasured(one) for key, one in value.items() if key not in MEASURED}
    return [_unmeasured(one) for one in value] if isinstance(value, list) else value
