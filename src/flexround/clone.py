"""Which clone's code runs: a copied .venv goes on running the code of the clone that it was made in."""

from importlib.machinery import ModuleSpec
from pathlib import Path

from flexround.errors import InputError


def check(found: ModuleSpec | None, root: Path) -> None:
    """Refuse to work in one clone with the code of another.

    Args:
        found: what ``import flexround`` finds; None where it isn't installed.
        root: of the clone; without a ``src`` of its own it may use any code.

    Raises:
        InputError: the code is another clone's.
    """
    own = root / "src" / "flexround" / "__init__.py"
    if found and found.origin and own.exists() and not own.samefile(found.origin):
        raise InputError(
            f"{root.resolve()} would run the code of {Path(found.origin).parents[2]}, whose .venv was copied or is on "
            "the PATH: rm -rf .venv, then make install; or put its own .venv/bin first on the PATH"
        )
