"""Print environment.yml: the pins of requirements.lock for conda users. ``make lock`` redirects it into the file."""

import itertools
import re
import tomllib
from pathlib import Path

from packaging.markers import default_environment
from packaging.requirements import Requirement

PYTHON = "3.11"  # of the environment; the lock has other versions of some packages for newer ones
ROOT = Path(__file__).resolve().parent.parent


def pins() -> dict[str, str]:
    """Return name -> version of everything in the lock that pyproject.toml names and ``PYTHON`` takes."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = itertools.chain(project["dependencies"], *project["optional-dependencies"].values())
    named = {requirement.name for requirement in map(Requirement, wanted)}
    lines = re.findall(r"^([a-z0-9-]+==[^\\\n]+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    target = {**default_environment(), "python_version": PYTHON, "python_full_version": f"{PYTHON}.0"}
    locked = [pin for pin in map(Requirement, lines) if pin.marker is None or pin.marker.evaluate(target)]
    return {pin.name: str(pin.specifier)[2:] for pin in locked if pin.name in named}


def render() -> str:
    """Return the text of environment.yml."""
    lines = [f"      - {name}=={version}" for name, version in pins().items()]
    return "\n".join(
        [
            "# For conda users; written by `make lock` with the pins of requirements.lock (a test compares them).",
            "name: flexround",
            "channels:",
            "  - conda-forge",
            "dependencies:",
            f"  - python={PYTHON}",
            "  - pip",
            "  - pip:",
            *lines,
            "      - --editable .",
            "",
        ]
    )


if __name__ == "__main__":
    print(render(), end="")
