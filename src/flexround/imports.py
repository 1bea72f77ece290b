"""Resolve ``package.module:name`` strings, the way params name code."""

import importlib
from typing import Any

from flexround.errors import SettingsError


def load(target: str) -> Any:
    """Import ``package.module:name`` and return the object.

    Raises:
        SettingsError: malformed target, no such module, or no such name in it.
    """
    module_name, colon, name = target.partition(":")
    if not (module_name and colon and name):
        raise SettingsError(f"{target!r}: write it as package.module:Name")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the module exists but lacks one of its own imports: that traceback is the useful message
        raise SettingsError(f"{target!r}: no module {module_name!r} on the Python path") from error
    if not hasattr(module, name):
        raise SettingsError(
            f"{target!r}: module {module_name!r} ({getattr(module, '__file__', 'built in')}) has no {name!r}"
        )
    return getattr(module, name)
