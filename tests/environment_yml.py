"""Print environment.yml: the pins of requirements.lock for conda users. ``make lock`` redirects it into the file."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def pins() -> dict[str, str]:
    """Return name -> version of everything in the lock that pyproject.toml names."""
    text = (ROOT / "pyproject.toml").read_text()
    named = set(re.findall(r'"([a-z0-9-]+)(?:[>=<][^"]*)?"', text.split("dependencies = [")[1].split("[tool.")[0]))
    locked = dict(re.findall(r"^([a-z0-9-]+)==([^\s;]+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE))
    return {name: version for name, version in sorted(locked.items()) if name in named}


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
            "  - python=3.11",
            "  - pip",
            "  - pip:",
            *lines,
            "      - --editable .",
            "",
        ]
    )


if __name__ == "__main__":
    print(render(), end="")
