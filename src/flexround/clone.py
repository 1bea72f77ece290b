"""Check which clone's code runs: a copied .venv still runs the code of its original clone."""

from importlib.machinery import ModuleSpec
from pathlib import Path

from flexround.errors import InputError


def check(found: ModuleSpec | None, root: Path) -> None:
    """Refuse to work in one clone with another clone's code.

    Args:
        found: the module that ``import flexround`` finds; None if it isn't installed.
        root: the clone's directory; a directory without ``src`` may use any code.

    Raises:
        InputError: the code belongs to another clone.
    """
    own = root / "src" / "flexround" / "__init__.py"
    if found and found.origin and own.exists() and not own.samefile(found.origin):
        raise InputError(
            f"{root.resolve()} would run the code of {Path(found.origin).parents[2]}, whose .venv was copied or is on "
            "the PATH: rm -rf .venv, then make install; or put its own .venv/bin first on the PATH"
        )
