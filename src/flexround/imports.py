"""Resolve ``package.module:name`` strings, by which params name code."""

import importlib
from typing import Any

from flexround.errors import SettingsError


def load(target: str) -> Any:
    """Import ``package.module:name`` and return the object.

    Raises:
        SettingsError: malformed target, unknown module, or a name that the module lacks.
    """
    module_name, colon, name = target.partition(":")
    if not (module_name and colon and name):
        raise SettingsError(f"{target!r}: write it as package.module:Name")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the module exists, but one of its imports fails: the traceback is the useful message
        raise SettingsError(f"{target!r}: no module {module_name!r} on the Python path") from error
    if not hasattr(module, name):
        raise SettingsError(
            f"{target!r}: module {module_name!r} ({getattr(module, '__file__', 'built in')}) has no {name!r}"
        )
    return getattr(module, name)
