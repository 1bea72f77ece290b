"""Packages whose versions can move a number, and the results that were made with other versions. No torch here."""

import contextlib
from collections import Counter
from importlib import metadata
from pathlib import Path

from flexround.errors import InputError
from flexround.io import artifacts

DECISIVE = ("torch", "torchvision", "transformers", "numpy", "lm_eval")


def told(results: Path) -> list[str]:
    """Return a line for each version of a package that results of a scale were made with and that is not installed."""
    made: Counter[tuple[str, str]] = Counter()
    for path in (*results.glob("evaluated/**/metrics.json"), *results.glob("quantized/**/record.json")):
        with contextlib.suppress(InputError, KeyError, TypeError):  # its readers say that a file is damaged
            packages = artifacts.read_json(path)["environment"]["packages"]
            made.update((name, packages[name]) for name in DECISIVE if packages[name] != metadata.version(name))
    return [
        f"{name} {metadata.version(name)} is installed; results in {results} that were made with {old}: {count}; "
        "they stay, and --forcerun data makes anew what you ask for"
        for (name, old), count in sorted(made.items())
    ]
